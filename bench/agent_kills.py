"""How long a training on one node is away when its agent is killed: SIGKILL to the next step of the slowest rank.

Ten kills in one run, plain and with everstep.State, beside so many busy processes. Where the time goes comes from the
journal. With `--tree`, the checkout there (with its own `.venv`) is measured.

    python bench/agent_kills.py [--kills 10] [--ranks 2] [--load 6] [--only plain,state] [--tree PATH] [--json FILE]
"""

import argparse
import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from everstep.journal.reader import Cursor
from everstep.model.actions import StartWorkers
from everstep.model.events import NodeJoined, NodeLost, WorkersStarted
from everstep.model.record import Record
from measuring.figures import table
from measuring.launched import Launched, adopt_orphans, end_on_sigterm, launched, left_behind
from measuring.steplog import StepLogs, first_step_of_slowest, latest_by_rank, steps_of_attempt

SCRIPT = Path(__file__).parent / "programs/agent_kills_script.py"
KINDS = ("plain", "state")
PHASES = ("lost", "joined", "start", "started", "step")
START_S, RECOVERY_S = 180.0, 90.0
MIN_STEPS = 20
BUSY = "while True: pass"


class Job:
    """One training, and what its journal says of the newest generation."""

    def __init__(self, tree: Path, folder: Path, kind: str, ranks: int) -> None:
        self.folder, self.run, self.ranks = folder, folder / "run", ranks
        (folder / "steps").mkdir(parents=True)
        self.env = {**os.environ, "EVERSTEP_HOME": str(folder), "EVERSTEP_BENCH_DIR": str(folder / "steps")}
        self.env.pop("PYTHONPATH", None)
        self.command = [str(tree / ".venv/bin/everstep"), "run", "--nproc-per-node", str(ranks), "--max-restarts=1000"]
        self.command += ["--run-dir", str(self.run), str(SCRIPT), *(["state"] if kind == "state" else [])]
        self.logs = StepLogs(folder / "steps")
        self.records: list[Record] = []
        self._cursor = Cursor(self.run / "journal.jsonl")

    def read(self) -> None:
        self.logs.read()
        if (self.run / "journal.jsonl").exists():
            self.records += [entry for entry in self._cursor.read() if isinstance(entry, Record)]

    def agent(self) -> int:
        return [record.event.pid for record in self.records if isinstance(record.event, NodeJoined)][-1]

    def settle(self, running: Launched, settle_s: float) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and running.exit_code() is None:
            self.read()
            pids = {step.pid for step in latest_by_rank(self.logs.done).values()}
            counts = steps_of_attempt(self.logs.done, pids)
            first = min((step.at for step in self.logs.done if step.pid in pids), default=math.inf)
            if len(counts) == self.ranks and min(counts.values()) >= MIN_STEPS and time.monotonic() - first > settle_s:
                return
            time.sleep(0.02)
        raise SystemExit(f"no training: {running.last_output(1500)}")

    def until_imported(self, limit_s: float = 60.0) -> None:
        """Twins of a first run import what ranks have imported; a tree that does not say so is not waited for long."""
        log, deadline = self.run / "nodes/n0/agent.log", time.monotonic() + limit_s
        while log.read_text().count("has imported ahead") < self.ranks and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(3.0)  # others are asked to fork ahead

    def kill(self) -> dict[str, object]:
        """Kill the agent. Seconds from there to each phase."""
        self.read()
        old, before, wall, began = (
            {step.pid for step in self.logs.done},
            len(self.records),
            time.time(),
            time.monotonic(),
        )
        os.kill(self.agent(), signal.SIGKILL)
        at = None
        while at is None and time.monotonic() - began < RECOVERY_S:
            time.sleep(0.01)
            self.read()
            at = first_step_of_slowest(self.logs.done, after=began, old_pids=old, num_ranks=self.ranks)
        time.sleep(0.2)
        self.read()
        new = self.records[before:]
        found: dict[str, object] = {"step": math.inf if at is None else at - began}
        found |= {name: _at(new, kind, wall) for name, kind in (("lost", NodeLost), ("joined", NodeJoined))}
        found["start"] = next(
            (r.at - wall for r in new if any(isinstance(action, StartWorkers) for action in r.actions)), math.nan
        )
        found["started"] = _at(new, WorkersStarted, wall)
        started = [one for r in new if isinstance(r.event, WorkersStarted) for one in r.event.started]
        found["how"] = ",".join(sorted({one.how for one in started}))
        found["why"] = next((one.why for one in started), "")
        return found


def _at(records: Sequence[Record], kind: type, since: float) -> float:
    return next((record.at - since for record in records if isinstance(record.event, kind)), math.nan)


@contextlib.contextmanager
def busy(number: int) -> Iterator[None]:
    running = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(number)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


def measure(tree: Path, kind: str, args: argparse.Namespace) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory(prefix="everstep-bench-", ignore_cleanup_errors=True) as scratch:
        job = Job(tree, Path(scratch) / "job", kind, args.ranks)
        found = []
        with launched(job.command, env=job.env, output=job.folder / "output.log") as running, busy(args.load):
            for number in range(1, args.kills + 1):
                job.settle(running, args.settle)
                if number == 1:
                    job.until_imported()
                found.append(job.kill())
                told = " ".join(f"{name} {found[-1][name]:.3f}" for name in PHASES)
                print(f"  {kind} kill {number}: {told} ({found[-1]['how']}: {found[-1]['why']})", file=sys.stderr)
                if found[-1]["step"] == math.inf:
                    print(running.last_output(3000), file=sys.stderr)
                    break
            os.kill(running.pid, signal.SIGTERM)
            code = running.wait(30.0)
        left = left_behind()
        if code is None or left:
            print(f"  {kind}: exit code {code}, left behind {left}", file=sys.stderr)
    return found


def _row(kind: str, found: list[dict[str, object]]) -> tuple[str, ...]:
    steps = sorted(float(str(one["step"])) for one in found)
    medians = [statistics.median(float(str(one[name])) for one in found) for name in PHASES]
    num_twins = sum(one["how"] == "twin" for one in found)
    return (
        *(
            kind,
            str(len(found)),
            str(num_twins),
            f"{statistics.median(steps):.2f} s",
            f"{steps[0]:.2f} to {steps[-1]:.2f} s",
        ),
        *(f"{value:.2f}" for value in medians),
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--load", type=int, default=0, help="busy processes beside it")
    parser.add_argument("--settle", type=float, default=8.0, help="seconds of training before each kill")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(KINDS), metavar="KIND,...")
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    adopt_orphans()
    end_on_sigterm()
    found = {kind: measure(args.tree, kind, args) for kind in args.only}
    load = os.getloadavg()[0]
    print(f"SIGKILL of the agent of {args.ranks} gloo ranks to the next step of the slowest; load {load:.1f}")
    head = ("training", "kills", "from twins", "median", "least to most", *(f"{name}, median" for name in PHASES))
    print(table(head, [_row(kind, ones) for kind, ones in found.items()]))
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
