"""From the kill of a rank to its next step with state on the device, stage by stage, and the restore beside `copy_`."""

import json
from typing import Any

from gpu_running.part import Report, Request, run
from gpu_running.under_everstep import run as everstep_run

_KILLS = 2
_GOAL_GB = 4


def main(request: Request, report: Report) -> None:
    for size in request.sizes_gb:
        report.attempt(f"{size:g} GB", lambda size=size: _one(request, report, size))  # type: ignore[misc]
    if not request.is_rehearsal:
        report.attempt("context made ahead", lambda: _one(request, report, _GOAL_GB, ahead=True))


def _one(request: Request, report: Report, size: float, *, ahead: bool = False) -> None:
    name = f"{size:g} GB{', context made ahead' if ahead else ''}"
    folder = request.path / f"{size:g}-lives{'-ahead' if ahead else ''}"
    folder.mkdir(parents=True, exist_ok=True)
    arguments = (request.device, size, folder, _KILLS)
    env = {"EVERSTEP_CUDA_AHEAD": "on" if ahead else "off"}
    run_of = everstep_run(
        request, folder.name + "-run", "restore_program.py", arguments, policy="snapshot_buffers = 4", env=env
    )
    with run_of as one:
        one.wait(request.limit_s)
    lives = [json.loads(line) for line in (folder / "lives.jsonl").read_text().splitlines()]
    killed_at = float((folder / "killed").read_text())
    _report(report, name, lives, killed_at, is_goal=not request.is_rehearsal and size <= _GOAL_GB)
    if not ahead:
        report.figure(f"{name}: a process begins without CUDA", not lives[-1]["was_initialized"], goal="is true")
    else:
        report.figure(f"{name}: it was there", lives[-1]["was_initialized"], goal="is true")


def _report(report: Report, name: str, lives: list[dict[str, Any]], killed_at: float, *, is_goal: bool) -> None:
    """Of the last life, which came back with everything warm."""
    before, life = lives[-2:]
    is_next = life["resumed"] and life["first"] == before["last"]  # it was killed before that one was complete
    report.figure(f"{name}: resumed at the very next step", is_next, goal="is true")
    goal = "<= 2.0" if is_goal else ""
    report.figure(f"{name}: kill to next step", life["stepped"] - killed_at, "s", goal)
    stages = ("entered", "context", "built", "restored", "ready", "stepped")
    titles = ("in the program again", "context", "model", "restore", "the program's own", "first step")
    at = killed_at
    for stage, title in zip(stages, titles, strict=True):
        report.figure(f"{name}: of it, {title}", life[stage] - at, "s")
        at = life[stage]
    if "locked_bytes" in life:
        report.figure(f"{name}: page-locked by the end of the restore", life["locked_bytes"] / 1e9, "GB")
    rate = life["size"] / (life["restored"] - life["built"])
    share = rate / life["locked_rate"]
    note = (
        f"{rate / 1e9:.2f} GB/s; copy_ {life['locked_rate'] / 1e9:.2f}, not page-locked {life['plain_rate'] / 1e9:.2f}"
    )
    report.figure(f"{name}: restore, of a copy", share, "share", ">= 0.8" if is_goal else "", note)


if __name__ == "__main__":
    run(main)
