"""How long a program that imports transformers and datasets takes to its first step, and to the next one after a kill.

torchrun and everstep start the same unchanged program in turn; then one run of everstep loses a rank again and again.
Needs `transformers`, `accelerate` and `datasets` beside the development tools.

    python bench/trainer_start.py [--rounds N] [--kills N] [--nproc N] [--wait S] [--json FILE]
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from measuring.launched import Launched, adopt_orphans, end_on_sigterm, launched

SCRIPT = Path(__file__).parent / "programs/trainer_script.py"
LIMIT_S = 300.0


class Step(NamedTuple):
    at: float
    pid: int
    rank: int
    number: int


class Job:
    """One run, and the file in which its ranks tell their steps."""

    def __init__(self, folder: Path, launcher: str, nproc: int, max_steps: int) -> None:
        folder.mkdir(parents=True)
        self.file, self.output = folder / "steps", folder / "output"
        words = [launcher] if launcher == "torchrun" else [launcher, "run"]
        self.command = [
            str(Path(sys.executable).with_name(words[0])), *words[1:], "--nproc-per-node", str(nproc),
            str(SCRIPT), str(self.file), str(max_steps), str(folder / "model"),
        ]  # fmt: skip
        self.env = {**os.environ, "EVERSTEP_HOME": str(folder.parent / "home"), "HF_HUB_OFFLINE": "1"}

    def steps(self) -> list[Step]:
        if not self.file.exists():
            return []
        lines = self.file.read_text().splitlines()
        return [Step(float(at), int(pid), int(rank), int(no)) for at, pid, rank, no in map(str.split, lines)]


def wait_for(found: Callable[[], float | None], job: Launched) -> float:
    """What `found` says as soon as it says anything. Raises RuntimeError when the run ends, or after LIMIT_S."""
    deadline = time.monotonic() + LIMIT_S
    while (answer := found()) is None:
        if job.exit_code() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no step came; exit code {job.exit_code()}\n{job.last_output()}")
        time.sleep(0.01)
    return answer


def first_step_s(folder: Path, launcher: str, nproc: int) -> float:
    """From the start of the launcher to the end of the first step of the last rank."""
    job = Job(folder, launcher, nproc, 3)
    began = time.time()
    with launched(job.command, env=job.env, output=job.output) as running:

        def all_made_one() -> float | None:
            first = [step.at for step in job.steps() if step.number == 1]
            return max(first) - began if len(first) == nproc else None

        took_s = wait_for(all_made_one, running)
        running.wait(60.0)
    return took_s


def kill_to_step_s(folder: Path, nproc: int, kills: int, wait_s: float) -> list[float]:
    """From each SIGKILL of a rank to the end of the first step that all ranks make after it."""
    job = Job(folder, "everstep", nproc, 1_000_000)
    job.command[2:2] = ["--max-restarts", "1000"]
    taken = []
    with launched(job.command, env=job.env, output=job.output) as running:
        wait_for(lambda: 0.0 if len({step.rank for step in job.steps()}) == nproc else None, running)
        for _ in range(kills):
            time.sleep(wait_s)
            victim = random.choice(job.steps()[-nproc:])
            killed_at = time.time()
            os.kill(victim.pid, signal.SIGKILL)
            before = {step.pid for step in job.steps()}

            def is_back(before: set[int] = before) -> float | None:
                new = [step.at for step in job.steps() if step.pid not in before and step.number == 1]
                return max(new) if len(new) == nproc else None

            taken.append(wait_for(is_back, running) - killed_at)
            print(f"  kill of rank {victim.rank}: next step of all ranks after {taken[-1]:.2f} s", flush=True)
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--wait", type=float, default=4.0, help="seconds between a step and the next kill")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    adopt_orphans()
    end_on_sigterm()
    starts: dict[str, list[float]] = {"torchrun": [], "everstep": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(given.rounds):
            for launcher, taken in starts.items():
                taken.append(first_step_s(folder / f"{launcher}-{number}", launcher, given.nproc))
                print(f"  {launcher}: first step after {taken[-1]:.2f} s", flush=True)
        kills = kill_to_step_s(folder / "kills", given.nproc, given.kills, given.wait) if given.kills else []
    ratios = [ours / theirs for ours, theirs in zip(starts["everstep"], starts["torchrun"], strict=True)]
    print(f"time to first step, everstep / torchrun: {' '.join(f'{ratio:.2f}' for ratio in ratios)}")
    if len(ratios) > 1:
        print(f"median of the second and later runs: {statistics.median(ratios[1:]):.2f} x")
    if kills:
        print(f"kill -> next step of all ranks: median {statistics.median(kills):.2f} s, longest {max(kills):.2f} s")
    if given.json:
        given.json.write_text(json.dumps({**starts, "ratios": ratios, "kills": kills, "load": os.getloadavg()[0]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
