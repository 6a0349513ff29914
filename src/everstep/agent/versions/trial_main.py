"""The process that looks whether a version can start: reads its code, and where no rank of the job runs, starts it.

The start is a real one, as the job's last rank, and ends where the program would meet the other ranks: at
`init_process_group`, at `everstep.State`, or at its first optimizer's step. Until then it does whatever the program
does. Called by `agent.versions.trial`; its answer is one line of JSON on the descriptor it was given.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from everstep.agent.versions.reading import file_of_module, read_program
from everstep.linux.parent import die_with_parent
from everstep.worker.process import errors, relocation
from everstep.worker.start import program

NICENESS = 10
"""Priority of the trial of an update that is in no hurry."""


def main() -> None:
    """Never returns but by the end of the process."""
    if not die_with_parent(int(os.environ["EVERSTEP_AGENT_PID"])):
        sys.exit("the agent is gone")
    job = json.loads(sys.argv[1])
    if not job.get("is_urgent"):
        os.nice(NICENESS)
    out = int(job["answer_fd"])
    os.set_inheritable(out, False)
    os.chdir(job["cwd"])
    relocation.set_up(job["moved"])
    why, what = _read(job)
    if why or not job["can_start"]:
        _answer(out, why or f"{what}; not started: ranks of the job run on this node", is_good=not why)
    _start(job, out, what)


def _read(job: dict[str, Any]) -> tuple[str, str]:
    """Why it cannot start, or what was looked at."""
    launch, name, moved = job["launch"], job["program"], job["moved"]
    shown_from = moved[1] if moved else job["cwd"]
    if launch == "module":
        path = [relocation.of(str(Path.cwd())), *sys.path]
        file = file_of_module(name, path)
    else:
        file = str(Path(name).absolute())
        path = [str(Path(file).resolve().parent), *sys.path]
        if Path(file).is_dir():
            path, file = [file, *sys.path], f"{file}{os.sep}__main__.py"
    if not file or not Path(file).is_file():
        return f"there is no program {name!r} in it", ""
    if not file.endswith(".py"):
        return "", f"{Path(file).name} is there"
    reading = read_program(file, path, shown_from)
    files = f"{reading.num_files} file{'s' if reading.num_files != 1 else ''}"
    return reading.why, f"{files} compile, and everything they import is there"


def _start(job: dict[str, Any], out: int, what: str) -> NoReturn:
    """Run the program as a rank does, up to where it would meet the others."""

    def reached(where: str) -> NoReturn:
        _answer(out, f"{what}; it starts: reached {where}", is_good=True)

    sys.meta_path.insert(0, _Ends(reached))
    try:
        program.run(job["launch"], job["program"], tuple(job["args"]))
    except SystemExit as end:
        if end.code in (None, 0):
            reached("its end")
        _answer(out, f"it ends with {end.code!r} before it has begun to train", is_good=False)
    except BaseException as error:
        place = errors.place_of(error)
        _answer(out, f"{place + ': ' if place else ''}{type(error).__name__}: {error}"[:1000], is_good=False)
    reached("its end")


class _Ends:
    """On import of what a program meets the others with: puts an end of the trial there."""

    def __init__(self, reached: Any) -> None:  # noqa: ANN401
        self._reached = reached
        self._names = {
            "torch.distributed.distributed_c10d": self._hook_groups,
            "torch.optim.optimizer": self._hook_optimizer,
            "everstep.worker.snapshots.state": self._hook_state,
        }

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:  # noqa: ANN401
        hook = self._names.pop(name, None)
        if hook is None:
            return None
        import importlib.util

        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        loader, run = spec.loader, spec.loader.exec_module

        def exec_module(module: Any) -> None:  # noqa: ANN401
            run(module)
            hook(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _hook_groups(self, module: Any) -> None:  # noqa: ANN401
        module.init_process_group = lambda *_args, **_kwargs: self._reached("init_process_group")

    def _hook_optimizer(self, module: Any) -> None:  # noqa: ANN401
        module.register_optimizer_step_pre_hook(lambda *_: self._reached("its first optimizer's step"))

    def _hook_state(self, module: Any) -> None:  # noqa: ANN401
        module.State.__init__ = lambda *_args, **_kwargs: self._reached("everstep.State")


def _answer(out: int, why: str, *, is_good: bool) -> NoReturn:
    sys.stdout.flush()
    os.write(out, json.dumps({"is_good": is_good, "why": why}).encode() + b"\n")
    os._exit(0)
