"""Whether a training on the device that was killed has, bit for bit, the numbers of one that was not."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpu_running.part import Report, Request, run
from gpu_running.under_everstep import run as everstep_run

_STEPS = 40
_KILLS = (13, 27)


def main(request: Request, report: Report) -> None:
    request.path.mkdir(parents=True, exist_ok=True)
    undisturbed = _alone(request, "undisturbed")
    if not request.is_rehearsal:
        again = _alone(request, "again")
        report.figure("the training itself repeats bit for bit", undisturbed == again, goal="is true")
    out = request.path / "killed.json"
    with everstep_run(request, "killed", "exact_program.py", (request.device, _STEPS, out, *_KILLS)) as one:
        one.wait(request.limit_s)
    killed = json.loads(out.read_text())
    report.figure("kills", killed["generation"], goal=f">= {len(_KILLS)}")
    for name, title in (("losses", "losses"), ("digest", "parameters"), ("drawn", "random numbers afterwards")):
        is_same = killed[name] == undisturbed[name]
        report.figure(f"killed and resumed: {title} bit-identical", is_same, goal="is true")


def _alone(request: Request, name: str) -> dict[str, Any]:
    out: Path = request.path / f"{name}.json"
    line = [sys.executable, str(request.programs / "exact_program.py"), request.device, str(_STEPS), str(out)]
    subprocess.run(line, check=True, env=dict(os.environ), stdout=subprocess.DEVNULL)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


if __name__ == "__main__":
    run(main)
