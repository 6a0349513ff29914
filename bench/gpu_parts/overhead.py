"""What a small transformer loses when everything is attached: launches in turns, bare ones and ones under everstep."""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from gpu_running.part import Report, Request, run
from gpu_running.under_everstep import run as everstep_run

_ORDER = ("bare", "attached", "attached", "bare")
_PROGRAM = "transformer_program.py"


def main(request: Request, report: Report) -> None:
    seconds = 0.3 if request.is_rehearsal else 7.0
    out = request.path / "launches.jsonl"
    order = _ORDER[:2] if request.is_rehearsal else _ORDER
    for number, mode in enumerate(order):
        began = time.monotonic()
        _launch(request, number, mode, seconds, out)
        report.figure(f"launch {number}, {mode}, took", time.monotonic() - began, "s")
    launches = [json.loads(line) for line in out.read_text().splitlines()]
    steps = {mode: [statistics.median(one["took_s"]) for one in launches if one["mode"] == mode] for mode in set(order)}
    bare, attached = statistics.median(steps["bare"]), statistics.median(steps["attached"])
    noise = (max(steps["bare"]) - min(steps["bare"])) / bare
    report.figure("state of the transformer", launches[0]["state_bytes"] / 1e9, "GB")
    report.figure("bare", launches[0]["tokens"] / bare, "tokens/s", note=f"step {bare * 1e3:.2f} ms")
    report.figure("everything attached", launches[0]["tokens"] / attached, "tokens/s")
    goal = "" if request.is_rehearsal else "<= 0.003"
    note = f"bare launches differ by {noise:.2%}"
    report.figure("everything attached costs, of a step", attached / bare - 1, "share", goal, note)


def _launch(request: Request, number: int, mode: str, seconds: float, out: Path) -> None:
    arguments = (mode, request.device, seconds, out)
    if mode == "bare":
        line = [sys.executable, str(request.programs / _PROGRAM), *map(str, arguments)]
        subprocess.run(line, check=True, env=dict(os.environ), stdout=subprocess.DEVNULL)
        return
    with everstep_run(request, f"{number}-{mode}", _PROGRAM, arguments) as one:
        one.wait(request.limit_s)


if __name__ == "__main__":
    run(main)
