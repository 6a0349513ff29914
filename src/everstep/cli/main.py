"""`everstep VERB ...`: finds the verb, loads only its module, turns our errors into one message and an exit code.

A verb's module has `run` and, unless it parses for itself, `add_arguments(parser)`; `run` then gets the namespace, else
the list of arguments. Nothing is imported for verbs that were not asked for: `status` must answer at once.
"""

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from everstep.errors import EverstepError

VERBS: dict[str, tuple[str, str]] = {
    "run": ("everstep.cli.act.run", "launch a training job as torchrun does, and keep it stepping"),
    "status": ("everstep.cli.see.status", "show whether the run is moving, and if not, what is being done"),
    "ui": ("everstep.cli.see.ui", "show a run, or all runs of a directory, in a browser"),
    "top": ("everstep.cli.see.top", "watch a run live in the terminal"),
    "incident": ("everstep.cli.see.incident", "show what disturbed the run, what it cost, what was done"),
    "explain": ("everstep.cli.see.explain", "explain a decision, or what a code means"),
    "goodput": ("everstep.cli.see.goodput", "show where every second of every rank went"),
    "report": ("everstep.cli.share.report", "report where the time of runs went, and what would help most"),
    "notify": ("everstep.cli.share.notify", "tell people about incidents: webhook, Slack, e-mail, a command"),
    "bundle": ("everstep.cli.share.bundle", "pack an incident for support, without secrets"),
    "logs": ("everstep.cli.see.logs", "show what the ranks wrote, per rank and generation"),
    "collectives": (
        "everstep.cli.see.collectives",
        "show each group's collectives: time, bandwidth, who comes last",
    ),
    "trace": ("everstep.cli.see.trace", "record what one rank does for some seconds, as a trace for Perfetto"),
    "doctor": ("everstep.cli.examine.doctor", "report what all ranks are doing now: stacks, states and flight records"),
    "analyze": (
        "everstep.cli.examine.analyze",
        "find the rank that a hang waits for, from logs, stacks and flight records",
    ),
    "check": ("everstep.cli.examine.check", "measure this node, compare it, name what makes it unfit to train"),
    "drill": ("everstep.cli.act.drill", "inject a fault and check the recovery"),
    "approve": ("everstep.cli.act.approve", "approve what a run in mode advise proposes"),
    "restart": ("everstep.cli.act.restart", "restart a job that stands still, without waiting any longer"),
    "drain": ("everstep.cli.act.drain", "take a node out of a running job; a standby takes its place"),
    "update": (
        "everstep.cli.act.update",
        "change the program of a running job: now or at the next interruption, and back",
    ),
    "submit": ("everstep.cli.act.submit", "ask a Slurm cluster for nodes and spares, and run a training job on them"),
    "agent": ("everstep.cli.act.agent", "join a running job with this host"),
    "stop": ("everstep.cli.act.stop", "end a run as Ctrl-C in its terminal would"),
    "kb": ("everstep.cli.examine.kb", "find known faults in logs, and look up what is known about them"),
    "node": ("everstep.cli.examine.node", "show what is known of the machines across runs; quarantine or readmit one"),
    "plan": ("everstep.cli.foresee.plan", "compute how many standbys a fleet needs, from its own history"),
    "simulate": ("everstep.cli.foresee.simulate", "simulate months of faults of a fleet, decided by the same rules"),
    "policies": (
        "everstep.cli.foresee.policies",
        "compare what a policy's patience costs: hangs found late, healthy jobs restarted",
    ),
    "replay": ("everstep.cli.foresee.replay", "show what another policy would have done in a recorded run"),
    "fabric": ("everstep.cli.fabric.main", "show, check and plan the network between machines, place jobs by it"),
    "ckpt": ("everstep.cli.examine.ckpt", "list, verify and export checkpoints"),
    "demo": ("everstep.cli.act.demo", "train a small model here, break it, watch it recover"),
}

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_NOT_WRITTEN = 1
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(argv: Sequence[str] | None = None) -> int:
    _open_closed_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if arguments else EXIT_USAGE
    if arguments[0] in ("-V", "--version"):
        from everstep.version import __version__

        print(f"everstep {__version__}")
        return 0
    if arguments[0] not in VERBS:
        print(f"everstep: unknown command {arguments[0]!r} (choose from {', '.join(VERBS)})", file=sys.stderr)
        return EXIT_USAGE
    return _guarded(arguments[0], arguments[1:])


def _open_closed_streams() -> None:
    """Open /dev/null where 0, 1 or 2 is closed: else the next file or socket that is opened gets its number, and prints
    go into it."""
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, mode, closefd=False))


def _guarded(verb: str, arguments: list[str]) -> int:
    try:
        code = _run(verb, arguments)
        sys.stdout.flush()
        return code
    except EverstepError as error:
        from everstep.report.parts.ansi import safe

        print(safe(f"everstep: {error}"), file=sys.stderr)  # it may quote a foreign file
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `everstep logs | head`: the reader has what it wanted
        _give_up_stdout()
        return 0
    except OSError as error:
        if error.filename is not None or error.errno not in _NOT_WRITTEN:
            raise
        _give_up_stdout()
        why = "what it says could not be written to standard output"
        print(f"everstep {verb}: {why}: {error.strerror}", file=sys.stderr)
        return EXIT_NOT_WRITTEN


def _give_up_stdout() -> None:
    """Python would complain at exit about the rest."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(verb: str, arguments: list[str]) -> int:
    module = import_module(VERBS[verb][0])
    if not hasattr(module, "add_arguments"):
        return int(module.run(arguments))
    from argparse import ArgumentParser, RawDescriptionHelpFormatter

    parser = ArgumentParser(
        prog=f"everstep {verb}", description=module.__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    module.add_arguments(parser)
    return int(module.run(parser.parse_args(arguments)))


def _usage() -> str:
    width = max(len(verb) for verb in VERBS)
    lines = ["everstep VERB ...      everstep VERB --help      everstep --version", ""]
    lines += [f"  {verb:<{width}}  {text}" for verb, (_, text) in VERBS.items()]
    run = "Most verbs take a RUN: its id, its directory or its journal file. Without one they take the latest run."
    return "\n".join([*lines, "", run])


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # as `everstep.__main__` does
    sys.exit(main())
