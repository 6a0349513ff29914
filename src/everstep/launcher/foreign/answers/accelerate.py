"""The answer to what `accelerate launch` would start. Its own code reads the command line and the config file, and
makes the environment; where it would call torchrun, or start a process, it ends here."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from everstep.launcher.foreign.answers.answering import Found, Stand, answer, changes, kind_of, refuse
from everstep.launcher.foreign.line import Line, literal

NAME = "accelerate launch"
_STANDARD = "standard"


def find(args: Sequence[str]) -> None:
    before = dict(os.environ)
    launch: Any = import_module("accelerate.commands.launch")
    torchrun: Any = import_module("torch.distributed.run")

    def ranks(given: Any) -> NoReturn:  # noqa: ANN401 - a Namespace, also of later torch
        flags = flags_of(torchrun.get_args_parser(), given)
        program, arguments = given.training_script, tuple(given.training_script_args)
        found = Line(launcher=NAME, flags=flags, program=program, args=arguments, **changes(before, os.environ))
        raise Found(found)

    def one_process(command: Sequence[str], env: dict[str, str]) -> NoReturn:
        if Path(command[0]).name in ("mpirun", "mpiexec"):
            refuse(NAME, "--mpirun_hostfile: everstep does not start ranks by MPI. docs/launchers.md, 'mpirun'")
        flags, (program, *arguments) = kind_of(command)
        flags = ("--nproc-per-node", "1", *flags)
        found = Line(launcher=NAME, flags=flags, program=program, args=literal(arguments), starts="one process",
                     **changes(before, env))  # fmt: skip
        raise Found(found)

    torchrun.run = ranks
    launch.subprocess = Stand(launch.subprocess, Popen=one_process)
    for name, what in (("tpu_launcher", "TPUs"), ("tpu_pod_launcher", "TPU pods"), ("sagemaker_launcher", "SageMaker")):
        setattr(launch, name, lambda *_, what=what: refuse(NAME, f"{what}: everstep starts no ranks there"))
    launch.deepspeed_launcher = _unless_over_ssh(launch.deepspeed_launcher)
    sys.argv = ["accelerate-launch", *args]
    launch.main()


def _unless_over_ssh(deepspeed_launcher: Any) -> Any:  # noqa: ANN401
    """With several machines accelerate starts `deepspeed`, and first writes its environment to a file here."""

    def launch(given: Any) -> None:  # noqa: ANN401
        how = given.deepspeed_multinode_launcher or "pdsh"
        if given.num_machines > 1 and how != _STANDARD:
            refuse(
                NAME,
                f"deepspeed_multinode_launcher {how}: everstep does not start ranks on other machines. Run this line "
                "on each, with --deepspeed_multinode_launcher standard and --machine_rank",
            )
        deepspeed_launcher(given)

    return launch


def flags_of(parser: Any, given: Any) -> tuple[str, ...]:  # noqa: ANN401
    """The flags with which torchrun's parser would make this namespace."""
    flags = ["--nproc-per-node", str(given.nproc_per_node)]
    for action in parser._actions:
        value = getattr(given, action.dest, None)
        if not action.option_strings or action.dest in ("nproc_per_node", "help") or value in (action.default, None):
            continue
        flag = max(action.option_strings, key=len)
        if action.nargs == 0:
            flags += [flag] if value else []
        else:
            flags += [flag, ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    return tuple(flags)


if __name__ == "__main__":
    answer(NAME, find)
