"""`everstep run [flags] LAUNCHER [its flags] program ...` as `everstep run [flags] program ...`.

Everstep's own flags stand before the launcher's name, and win over what the launcher says."""

import argparse
from collections.abc import MutableMapping, Sequence

import msgspec

from everstep.launcher.arguments import options
from everstep.launcher.foreign.asking import ask
from everstep.launcher.foreign.line import TEMPLATE, UNSET, Line
from everstep.launcher.foreign.recognizing import Called, recognize

_MODULE = ("-m", "--module")
_SHAPE = ("nproc_per_node", "nnodes", "local_nodes")


class Translated(msgspec.Struct, frozen=True, kw_only=True):
    """The command that is run, whether or not there was a launcher."""

    given: argparse.Namespace
    unset: tuple[str, ...] = ()  # torchrun's variables that the ranks do not get
    notes: tuple[str, ...] = ()  # logged once at the start


def translate(argv: Sequence[str], environ: MutableMapping[str, str]) -> Translated:
    """Change `environ` as the launcher would for its processes. Raises ConfigError; exits with 2 as argparse does."""
    given = options.parse(argv)
    if given.no_python or given.run_path:
        return Translated(given=given)
    called = recognize(given.training_script, given.training_script_args, is_module=given.module)
    if called is None:
        return Translated(given=given)
    own = list(argv[: len(argv) - 1 - len(given.training_script_args)])
    if given.module:
        own = [word for word in own if word not in _MODULE]
    line = read(called)
    for name in line.removed:
        environ.pop(name, None)
    environ.update(line.environ)
    ours = options.given_in([*own, line.program])
    return Translated(
        given=options.parse([*line.flags, *own, line.program, *line.args]),
        unset=_unset(line, ours),
        notes=_notes(line, ours),
    )


def read(called: Called) -> Line:
    """The launcher's command line. Raises ConfigError."""
    if called.name in ("accelerate", "deepspeed"):
        return ask(called.name, called.args)
    return _of_torch(called)


def _of_torch(called: Called) -> Line:
    """torchrun has our own parser. `torch.distributed.launch` has one flag more, and gives each rank its number."""
    is_old = called.name != "torchrun"
    parser = options.parser()
    if is_old:
        parser.add_argument("--use-env", "--use_env", action="store_true")
    given = parser.parse_args(list(called.args))
    arguments = tuple(given.training_script_args)
    flags = called.args[: len(called.args) - 1 - len(arguments)]
    if is_old:
        flags = tuple(flag for flag in flags if flag not in ("--use-env", "--use_env"))
        arguments = arguments if given.use_env else (f"--local-rank={TEMPLATE}", *arguments)
    return Line(launcher=called.name, flags=flags, program=given.training_script, args=arguments)


def _unset(line: Line, ours: dict[str, object]) -> tuple[str, ...]:
    """One process that everstep was asked to make several of is a rank like any other."""
    is_shaped = line.starts == "one process" and any(name in ours for name in _SHAPE)
    return () if is_shaped else UNSET[line.starts]


def _notes(line: Line, ours: dict[str, object]) -> tuple[str, ...]:
    theirs = options.given_in([*line.flags, line.program])
    lost = [name for name, value in ours.items() if name in theirs and theirs[name] != value]
    won = [f"--{name.replace('_', '-')} {ours[name]} wins over {theirs[name]} of {line.launcher}" for name in lost]
    variables = f", with {len(line.environ)} variables of {line.launcher}'s" if line.environ else ""
    understood = f"{line.launcher} is read as: everstep run {' '.join((*line.flags, line.program))}{variables}"
    return (understood, *won)
