"""Programs as people write them (no State), killed once: from the kill to the next step, beside torchrun."""

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

from gpu_running.part import Report, Request, run
from measuring.launched import adopt_orphans, launched

_STEPS, _KILL_AT = 60, 40
_PROGRAMS = {"": "plain_program.py", "Trainer of transformers, ": "trainer_program.py"}


def main(request: Request, report: Report) -> None:
    adopt_orphans()
    everstep = [sys.executable, "-m", "everstep", "run", "--run-dir"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--max-restarts", "3"]
    for kind, launcher in itertools.product(_PROGRAMS, (everstep, torchrun)):
        name = kind + ("everstep" if launcher is everstep else "torchrun")
        report.attempt(name, lambda name=name, kind=kind, line=launcher: _one(request, report, name, kind, line))  # type: ignore[misc]


def _one(request: Request, report: Report, name: str, kind: str, line: list[str]) -> None:
    folder = request.path / name.replace(" ", "-").replace(",", "")
    folder.mkdir(parents=True, exist_ok=True)
    program = [str(request.programs / _PROGRAMS[kind]), str(folder), str(_STEPS), str(_KILL_AT)]
    if line[-1] == "--run-dir":
        line = [*line, str(folder / "run")]
    command = [*line, "--nproc-per-node", "1", *program]
    with launched(command, env=os.environ, output=folder / "output.log") as running:
        code = running.wait(request.limit_s / 4)
        said = running.last_output(300)
    report.figure(f"{name}: ends with", code, goal="<= 0" if "everstep" in name else "", note="" if code == 0 else said)
    steps = _steps(folder / "steps.jsonl")
    before, after = next(
        (pair for pair in itertools.pairwise(steps) if pair[0]["life"] != pair[1]["life"]), (None, None)
    )
    if before is None or after is None:
        report.figure(f"{name}: kill to next step", None, "s", "<= 4.0")
        return
    goal = "<= 4.0" if "everstep" in name else ""
    report.figure(f"{name}: kill to next step", after["at"] - before["at"], "s", goal)
    at = before["at"]
    for stage, reached in [*after["stages"].items(), ("first step", after["at"])]:
        report.figure(f"{name}: of it, {stage}", reached - at, "s")
        at = reached
    report.figure(f"{name}: steps after it", sum(each["life"] > 0 for each in steps), note=f"of {_STEPS}")


def _steps(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    run(main)
