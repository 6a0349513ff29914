"""What a change of the code costs, in the life of one job: `everstep update --urgent`, and `everstep stop` with
`everstep run` after it, in turns.

Two times for each, both to the first new step of the slowest rank: from the last step with the old code (training
stands still), and from the moment when the command was entered (a human waits). The job goes on from its last step
every time: an update from memory, a new submission from the checkpoint that the stop leaves on disk. It is checked
that no step is left out, and counted how many are done again.

    python bench/update.py [--rounds 5] [--ranks 2] [--json FILE]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from measuring.figures import Spread, spread
from measuring.launched import Launched, adopt_orphans, end_on_sigterm, launched

EVERSTEP = (sys.executable, "-m", "everstep.cli.main")
WARM_STEPS = 60
"""Steps between two changes: the template has parked its workers again, and the job is in its stride."""

QUIET_S = 3.0
LIMIT_S = 180.0


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change. Times in seconds, to the first new step of the slowest rank."""

    how: str
    stood_still_s: float
    waited_s: float
    redone_steps: int


class Job:
    """The job, which outlives its runs; `tag` is what its code says of itself now."""

    def __init__(self, folder: Path, num_ranks: int) -> None:
        self.folder = folder
        self.num_ranks = num_ranks
        self.code = folder / "code"
        self.trail = folder / "trail"
        self.num_runs = 0
        self.tag = ""
        self.process: Launched | None = None
        for path in (self.code, self.trail):
            path.mkdir()
        shutil.copy(Path(__file__).parent / "programs/update_script.py", self.code / "train.py")
        self.env = {
            **os.environ,
            "EVERSTEP_HOME": str(folder / "home"),
            "UPDATE_TRAIL": str(self.trail),
            "OMP_NUM_THREADS": "1",
        }

    def write(self, tag: str) -> None:
        self.tag = tag
        (self.code / "tag.py").write_text(f"TAG = {tag!r}\n")

    def command(self) -> list[str]:
        self.num_runs += 1
        where = ["--run-dir", str(self.run_dir), "--checkpoint-dir", str(self.folder / "checkpoints")]
        return [*EVERSTEP, "run", *where, "--nproc-per-node", str(self.num_ranks), str(self.code / "train.py")]

    @property
    def run_dir(self) -> Path:
        return self.folder / f"run-{self.num_runs}"

    def steps(self, rank: int, tag: str) -> list[tuple[int, float]]:
        """(step, when) of this code on this rank."""
        path = self.trail / f"rank-{rank}.log"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(int(line[1]), float(line[2])) for line in lines if len(line) == 3 and line[0] == tag]

    def await_steps(self, num_steps: int) -> None:
        """Every rank has done so many with the code as it is."""
        deadline = time.monotonic() + LIMIT_S
        while any(len(self.steps(rank, self.tag)) < num_steps for rank in range(self.num_ranks)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"no {num_steps} steps with {self.tag} within {LIMIT_S:g} s; see {self.folder}")
            time.sleep(0.005)

    def ask(self, *words: str) -> str:
        done = subprocess.run(
            [*EVERSTEP, *words], env=self.env, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"everstep {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    adopt_orphans()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="everstep-bench-", ignore_cleanup_errors=True) as scratch:
        changes = _rounds(Job(Path(scratch), args.ranks), args.rounds)
    print(report(changes, args.ranks))
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(change) for change in changes], indent=1) + "\n")
    return 0


def _rounds(job: Job, num_rounds: int) -> list[Change]:
    """Update, resubmit, update, resubmit: every run is begun by a resubmission and updated once."""
    changes: list[Change] = []
    job.write("code-0")
    for round_ in range(1, num_rounds + 1):
        with launched(job.command(), env=job.env, output=job.folder / f"out-{job.num_runs}") as process:
            if round_ > 1:
                job.await_steps(1)
                changes.append(_measured(job, "resubmit", before, asked_at))  # noqa: F821 - set a round before
                _tell(changes[-1], round_)
            job.await_steps(WARM_STEPS)
            time.sleep(QUIET_S)
            before, asked_at = job.tag, time.monotonic()
            job.write(f"update-{round_}")
            job.ask("update", str(job.run_dir), "--urgent", "--code", str(job.code))
            job.await_steps(1)
            changes.append(_measured(job, "update", before, asked_at))
            _tell(changes[-1], round_)
            job.await_steps(WARM_STEPS)
            time.sleep(QUIET_S)
            before, asked_at = job.tag, time.monotonic()
            job.write(f"resubmit-{round_}")
            job.ask("stop", str(job.run_dir))
            if process.wait(LIMIT_S) is None:
                raise RuntimeError(f"the run in {job.run_dir} does not stop")
    with launched(job.command(), env=job.env, output=job.folder / f"out-{job.num_runs}"):
        job.await_steps(1)
        changes.append(_measured(job, "resubmit", before, asked_at))
        _tell(changes[-1], num_rounds)
    return changes


def _measured(job: Job, how: str, before: str, asked_at: float) -> Change:
    ranks = range(job.num_ranks)
    last = [job.steps(rank, before)[-1] for rank in ranks]
    first = [job.steps(rank, job.tag)[0] for rank in ranks]
    left_out = max(new[0] - old[0] for old, new in zip(last, first, strict=True))
    if left_out > 1:
        raise RuntimeError(f"{how}: {left_out - 1} steps were left out")
    stepped_at = max(at for _, at in first)
    return Change(
        how=how,
        stood_still_s=stepped_at - max(at for _, at in last),
        waited_s=stepped_at - asked_at,
        redone_steps=max(old[0] + 1 - new[0] for old, new in zip(last, first, strict=True)),
    )


def _tell(change: Change, round_: int) -> None:
    figures = f"stood still {change.stood_still_s:.2f} s, waited {change.waited_s:.2f} s"
    print(f"round {round_}  {change.how:<9} {figures}, {change.redone_steps} steps again", file=sys.stderr, flush=True)


def report(changes: Sequence[Change], num_ranks: int) -> str:
    lines = [f"a change of the code, {num_ranks} gloo ranks, to the first new step of the slowest rank", ""]
    lines.append(f"{'':<10}{'times':>6}{'stood still, median':>21}{'min..max':>16}{'waited, median':>16}{'again':>7}")
    still: dict[str, Spread | None] = {}
    waited: dict[str, Spread | None] = {}
    for how in ("update", "resubmit"):
        ones = [change for change in changes if change.how == how]
        still[how], waited[how] = spread([c.stood_still_s for c in ones]), spread([c.waited_s for c in ones])
        one, other = still[how], waited[how]
        if one is not None and other is not None:
            extent = f"{one.least:.2f}..{one.most:.2f} s"
            again = max(change.redone_steps for change in ones)
            lines.append(f"{how:<10}{one.num:>6}{one.median:>19.2f} s{extent:>16}{other.median:>14.2f} s{again:>7}")
    lines += ["", f"stood still: {_times(still)}; waited: {_times(waited)}"]
    return "\n".join(lines)


def _times(spreads: dict[str, Spread | None]) -> str:
    quick, slow = spreads["update"], spreads["resubmit"]
    return "not measured" if quick is None or slow is None else f"{slow.median / quick.median:.1f} times as long"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
