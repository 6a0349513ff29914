"""What everstep adds to the time of a step: examples/train_gpt.py under torchrun and under everstep, in turns.

Three trainings are alive at once and take turns of a few seconds, the others stopped: plain torchrun, everstep without
snapshots, everstep with a snapshot after every step. Ends everything it started, also on Ctrl-C.

    python bench/overhead.py [--rounds N] [--slice SECONDS] [--nproc N] [--json FILE]
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from display import progress
from figures import table
from launched import Launched, adopt_orphans, end_on_sigterm, launched
from peers import Contender, everstep, torchrun
from slices import Cost, Slice, cost, step_s, turns
from steplog import StepLogs

SCRIPT = Path(__file__).parents[1] / "examples" / "train_gpt.py"
TIMED = Path(__file__).with_name("timed.py")
BASELINE, WITHOUT, WITH = "torchrun", "everstep, no snapshots", "everstep, snapshot each step"
_MARGIN_S = 0.5  # after being let go: caches fill, late timers fire
_START_TIMEOUT_S = 180.0
_WARM_STEPS = 20


class UnusableError(Exception):
    """The trainings cannot be compared: one did not start, ended, or was restarted."""


@dataclass(slots=True)
class Runner:
    """One training that takes its turns."""

    name: str
    running: Launched
    logs: StepLogs

    def warm_up(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while len(self.logs.done) < _WARM_STEPS:
            self.logs.read()
            if self.running.exit_code() is not None:
                raise UnusableError(
                    f"{self.name} ended with {self.running.exit_code()}: {self.running.last_output(600)}"
                )
            if time.monotonic() > deadline:
                raise UnusableError(f"{self.name}: no {_WARM_STEPS} steps within {_START_TIMEOUT_S:g} s")
            time.sleep(0.05)

    def turn(self, round_: int, length_s: float) -> Slice:
        self.running.resume()
        began = time.monotonic() + _MARGIN_S
        time.sleep(_MARGIN_S + length_s)
        ended = time.monotonic()
        self.running.pause()
        return Slice(contender=self.name, round=round_, began=began, ended=ended)

    def times(self) -> list[float]:
        """Rank 0's steps. Ranks step together, one is enough. Raises UnusableError after a restart."""
        self.logs.read()
        steps = [step for step in self.logs.done if step.rank == 0]
        if len({step.pid for step in steps}) != 1 or self.running.exit_code() is not None:
            raise UnusableError(f"{self.name} was restarted or ended while it was measured")
        return [step.at for step in steps]


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    adopt_orphans()
    end_on_sigterm()
    console = Console(stderr=True)
    absent = [one.absent for one in (torchrun(workaround=False), everstep()) if one.absent is not None]
    if absent:
        console.print(f"cannot compare: {absent[0]}", soft_wrap=True)
        return 1
    with tempfile.TemporaryDirectory(prefix="everstep-bench-", ignore_cleanup_errors=True) as scratch:
        try:
            steps = _measure(Path(scratch), args, console)
        except UnusableError as error:
            console.print(str(error), soft_wrap=True)
            return 1
    costs = {name: cost(steps[name], steps[BASELINE]) for name in (WITHOUT, WITH)}
    snapshots = cost(steps[WITH], steps[WITHOUT])
    print(report(steps, costs, snapshots, args.nproc))
    if args.json is not None:
        args.json.write_text(json.dumps(_document(steps, costs, snapshots, args), indent=1) + "\n")
    return 0


def _measure(scratch: Path, args: argparse.Namespace, console: Console) -> dict[str, list[float | None]]:
    """Median step time of every round, by name."""
    slices: list[Slice] = []
    with contextlib.ExitStack() as stack, progress(console) as bar:
        runners: dict[str, Runner] = {}
        for name, contender, snapshots in (
            (BASELINE, torchrun(workaround=False), "on"),
            (WITHOUT, everstep(), "off"),
            (WITH, everstep(), "on"),
        ):
            task = bar.add_task(f"starting {name}", total=1)
            runners[name] = _start(stack, name, contender, snapshots, scratch / str(len(runners)), args.nproc)
            runners[name].warm_up()
            runners[name].running.pause()
            bar.update(task, completed=1)
        task = bar.add_task("measuring", total=args.rounds * len(runners))
        for round_ in range(args.rounds):
            for name in turns(list(runners), round_):
                bar.update(task, description=f"round {round_ + 1}: {name}")
                slices.append(runners[name].turn(round_, args.slice))
                bar.advance(task)
        times = {name: runner.times() for name, runner in runners.items()}
    return {
        name: [step_s(times[name], one) for one in sorted(slices, key=lambda one: one.round) if one.contender == name]
        for name in runners
    }


def _start(
    stack: contextlib.ExitStack, name: str, contender: Contender, snapshots: str, folder: Path, nproc: int
) -> Runner:
    steps = folder / "steps"
    steps.mkdir(parents=True)
    env = {
        **os.environ,
        **contender.env,
        "EVERSTEP_BENCH_DIR": str(steps),
        "EVERSTEP_BENCH_SNAPSHOTS": snapshots,
        "EVERSTEP_HOME": str(folder),
        "TMPDIR": str(folder),
    }
    line = [*contender.line(TIMED, nproc), str(SCRIPT), "--steps", "1000000"]
    running = stack.enter_context(launched(line, env=env, output=folder / "output.log"))
    return Runner(name, running, StepLogs(steps))


def report(
    steps: dict[str, list[float | None]], costs: dict[str, Cost | None], snapshots: Cost | None, nproc: int
) -> str:
    rows = []
    for name, values in steps.items():
        known = [value for value in values if value is not None]
        median = f"{statistics.median(known) * 1000:.2f} ms" if known else "—"
        rows.append((name, str(len(known)), median, *_cells(costs.get(name))))
    rows.append(("  of it the snapshots", "", "", *_cells(snapshots)))
    head = f"Step time of examples/train_gpt.py, {nproc} ranks, in turns with torchrun"
    note = "added: median over rounds of step time / torchrun's in the same round - 1, with its 95 % interval."
    return "\n".join([head, "", table(("training", "rounds", "step", "added", "95 % interval"), rows), "", note])


def _cells(cost: Cost | None) -> tuple[str, str]:
    if cost is None:
        return "—", "—"
    if cost.low is None or cost.high is None:
        return f"{cost.share:+.2%}", "—"
    return f"{cost.share:+.2%}", f"{cost.low:+.2%} to {cost.high:+.2%}"


def _document(
    steps: dict[str, list[float | None]],
    costs: dict[str, Cost | None],
    snapshots: Cost | None,
    args: argparse.Namespace,
) -> dict[str, object]:
    return {
        "benchmark": "overhead",
        "nproc": args.nproc,
        "slice_s": args.slice,
        "python": sys.version.split()[0],
        "step_s": steps,
        "added": {name: asdict(one) if one else None for name, one in costs.items()},
        "snapshots": asdict(snapshots) if snapshots else None,
    }


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=30, help="turns of each training (default %(default)s)")
    parser.add_argument("--slice", type=float, default=3.0, help="seconds of a turn (default %(default)s)")
    parser.add_argument("--nproc", type=int, default=2, help="ranks; no more than cores (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
