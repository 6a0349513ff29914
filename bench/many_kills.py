"""Three hundred kills, 50 ms to 1.2 s apart, with --max-restarts=1000: all are recovered from, to the last bit.

A rank that lives is drawn, and gets SIGKILL, whether the job is at a step, in its rendezvous, or being restored. Then
the same training runs undisturbed to the same step, and every loss and the parameters are compared.

    python bench/many_kills.py [--kills N] [--seed N] [--nproc N] [--json FILE]
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from everstep.journal.reader import Cursor
from everstep.model.events import WorkersStarted
from everstep.model.record import Record
from measuring.launched import Launched, adopt_orphans, end_on_sigterm, launched, left_behind
from measuring.losslog import LossLog, compare

SCRIPT = Path(__file__).parent / "programs/many_kills_script.py"
GAP_S = (0.05, 1.2)
FIRST_S = 180.0  # until the first steps, on a machine that does much else
END_S = 300.0
MARGIN = 60  # steps after the last kill


class Job:
    """One training, with everything it writes in a folder of its own."""

    def __init__(self, folder: Path, nproc: int) -> None:
        folder.mkdir(parents=True)
        self.folder, self.run = folder, folder / "run"
        self.losses, self.final, self.stop = folder / "losses", folder / "final", folder / "stop"
        self.env = {**os.environ, "EVERSTEP_HOME": str(folder), "EVERSTEP_EXIT_CODES": "everstep"}
        self.command = [
            str(Path(sys.executable).with_name("everstep")), "run", "--nproc-per-node", str(nproc),
            "--max-restarts=1000", "--run-dir", str(self.run), str(SCRIPT),
            str(self.losses), str(self.final), str(self.stop),
        ]  # fmt: skip
        self.log = LossLog(self.losses)
        self._cursor = Cursor(self.run / "journal.jsonl")
        self._ranks: dict[int, int] = {}
        self._generation = -1

    def living_ranks(self) -> list[int]:
        """Processes of the newest generation that is started."""
        if (self.run / "journal.jsonl").exists():
            for entry in self._cursor.read():
                event = entry.event if isinstance(entry, Record) else None
                if isinstance(event, WorkersStarted):
                    if event.generation > self._generation:
                        self._generation, self._ranks = event.generation, {}
                    self._ranks |= {started.rank: started.pid for started in event.started}
        return [pid for pid in self._ranks.values() if _lives(pid)]

    def until_step(self, running: Launched, step: int, limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        while self.log.last_step < step and running.exit_code() is None and time.monotonic() < deadline:
            self.log.read()
            time.sleep(0.02)
        return self.log.last_step >= step


def _lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def kill_all(job: Job, running: Launched, num_kills: int, rng: random.Random) -> int:
    """How many kills hit a rank that lived, while the run went on."""
    done, due = 0, time.monotonic()
    deadline = due + END_S + 5.0 * num_kills
    while done < num_kills and running.exit_code() is None and time.monotonic() < deadline:
        ranks = job.living_ranks() if time.monotonic() >= due else []
        if not ranks:
            time.sleep(0.002)
            continue
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(ranks), signal.SIGKILL)
            done += 1
        due = time.monotonic() + rng.uniform(*GAP_S)
    return done


def measure(root: Path, num_kills: int, seed: int, nproc: int) -> dict[str, object]:
    killed, calm = Job(root / "killed", nproc), Job(root / "calm", nproc)
    with launched(killed.command, env=killed.env, output=killed.folder / "output.log") as running:
        if not killed.until_step(running, 5, FIRST_S):
            raise SystemExit(f"no training: {running.last_output(800)}")
        began = time.monotonic()
        hits = kill_all(killed, running, num_kills, random.Random(seed))
        took_s = time.monotonic() - began
        killed.log.read()
        went_on = killed.until_step(running, killed.log.last_step + 1, END_S)
        last = killed.log.last_step + MARGIN
        killed.stop.write_text(str(last))
        code = running.wait(END_S)
        said = "" if code == 0 else running.last_output(1500)
        leftover = left_behind() if code is not None else []
    calm.stop.write_text(str(last))
    with launched(calm.command, env=calm.env, output=calm.folder / "output.log") as running:
        running.wait(END_S)
    killed.log.read()
    calm.log.read()
    compared = compare(calm.log.losses, killed.log.losses)
    finals = [job.final.read_text() if job.final.exists() else None for job in (calm, killed)]
    return {
        "kills": num_kills,
        "hits": hits,
        "took_s": round(took_s, 1),
        "went_on": went_on,
        "exit_code": code,
        "generations": killed._generation + 1,
        "steps": compared.num_steps,
        "redone": compared.redone,
        "identical": compared.identical and finals[0] is not None and finals[0] == finals[1],
        "left_behind": len(leftover),
        "said": said,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave both runs' files there")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    adopt_orphans()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="everstep-bench-", ignore_cleanup_errors=True) as scratch:
        found = measure(args.keep or Path(scratch), args.kills, args.seed, args.nproc)
    said = found.pop("said")
    for name, value in found.items():
        print(f"{name:>12}  {value}")
    if said:
        print(said)
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    passed = found["hits"] == found["kills"] and found["exit_code"] == 0 and found["identical"]
    return 0 if passed and not found["left_behind"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
