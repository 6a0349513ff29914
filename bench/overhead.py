"""What everstep adds to the time of a step: examples/train_gpt.py under torchrun and under everstep, in turns.

Three trainings are alive at once and take turns of a few seconds, the others stopped: plain torchrun, everstep without
snapshots, everstep with a snapshot after every step. With --probes, two: everstep that watches nothing, and everstep
with everything that it watches by default (hangs, slowness, numbers, digests). Ends everything it started, also on
Ctrl-C.

    python bench/overhead.py [--probes] [--rounds N] [--slice SECONDS] [--nproc N] [--json FILE]

--probes takes rounds x 2 x (slice + 0.3) seconds and half a minute to start: 60 rounds of 2.5 s are six minutes.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from contests.peers import Contender, everstep, torchrun
from measuring.display import progress
from measuring.figures import table
from measuring.launched import Launched, adopt_orphans, cpu_s, end_on_sigterm, launched
from measuring.slices import Cost, Slice, cost, durations, turns, typical
from measuring.steplog import StepDone, StepLogs

SCRIPT = Path(__file__).parents[1] / "examples" / "train_gpt.py"
TIMED = Path(__file__).parent / "measuring/timed.py"
BASELINE, WITHOUT, WITH = "torchrun", "everstep, no snapshots", "everstep, snapshot each step"
UNWATCHED, WATCHED = "everstep, probes off", "everstep, probes on"
UNWATCHED_POLICY = """[policy]
watch_hangs = false
watch_slowness = false
watch_numbers = false
digest_every = 0
"""
_MARGIN_S = 0.3  # after being let go: caches fill, late timers fire
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
    ran_s: float = 0.0
    background_s: float = 0.0

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
        before = self._cpu_beside_ranks()
        self.running.resume()
        began = time.monotonic() + _MARGIN_S
        time.sleep(_MARGIN_S + length_s)
        ended = time.monotonic()
        self.running.pause()
        self.background_s += self._cpu_beside_ranks() - before
        self.ran_s += ended - began + _MARGIN_S
        return Slice(contender=self.name, round=round_, began=began, ended=ended)

    def background(self) -> float:
        """CPU seconds per second of its turns of all processes but the ranks: what a core loses to the launcher."""
        return self.background_s / self.ran_s

    def _cpu_beside_ranks(self) -> float:
        self.logs.read()
        ranks = {step.pid for step in self.logs.done}
        return sum(cpu_s(pid) for pid in self.running.pids() if pid not in ranks)

    def steps(self) -> list[StepDone]:
        """Rank 0's. Raises UnusableError after a restart."""
        self.logs.read()
        steps = [step for step in self.logs.done if step.rank == 0]
        if len({step.pid for step in steps}) != 1 or self.running.exit_code() is not None:
            raise UnusableError(f"{self.name} was restarted or ended while it was measured")
        return steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """One training that is compared."""

    name: str
    contender: Contender
    snapshots: str = "on"
    config: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Each step of rank 0, by round and training, on three clocks."""

    wall: dict[str, list[list[float]]]
    cpu: dict[str, list[list[float]]]
    loop: dict[str, list[list[float]]]  # in everstep.State, between two steps
    background: dict[str, float]  # CPU seconds of all processes that are not ranks, per second

    @property
    def baseline(self) -> str:
        """The first one."""
        return next(iter(self.wall))


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    adopt_orphans()
    end_on_sigterm()
    console = Console(stderr=True)
    entrants = _entrants(probes=args.probes)
    absent = [one.contender.absent for one in entrants if one.contender.absent is not None]
    if absent:
        console.print(f"cannot compare: {absent[0]}", soft_wrap=True)
        return 1
    with tempfile.TemporaryDirectory(prefix="everstep-bench-", ignore_cleanup_errors=True) as scratch:
        try:
            measured = _measure(entrants, Path(scratch), args, console)
        except UnusableError as error:
            console.print(str(error), soft_wrap=True)
            return 1
    print(report(measured, args.nproc))
    if args.json is not None:
        args.json.write_text(json.dumps(_document(measured, args), indent=1) + "\n")
    return 0


def _entrants(*, probes: bool) -> list[Entrant]:
    """The baseline first."""
    if probes:
        return [
            Entrant(name=UNWATCHED, contender=everstep(), config=UNWATCHED_POLICY),
            Entrant(name=WATCHED, contender=everstep()),
        ]
    return [
        Entrant(name=BASELINE, contender=torchrun(workaround=False)),
        Entrant(name=WITHOUT, contender=everstep(), snapshots="off"),
        Entrant(name=WITH, contender=everstep()),
    ]


def _measure(entrants: list[Entrant], scratch: Path, args: argparse.Namespace, console: Console) -> Measured:
    slices: list[Slice] = []
    with contextlib.ExitStack() as stack, progress(console) as bar:
        runners: dict[str, Runner] = {}
        for one in entrants:
            task = bar.add_task(f"starting {one.name}", total=1)
            runners[one.name] = _start(stack, one, scratch / str(len(runners)), args.nproc)
            runners[one.name].warm_up()
            runners[one.name].running.pause()
            bar.update(task, completed=1)
        task = bar.add_task("measuring", total=args.rounds * len(runners))
        for round_ in range(args.rounds):
            for name in turns(list(runners), round_):
                bar.update(task, description=f"round {round_ + 1}: {name}")
                slices.append(runners[name].turn(round_, args.slice))
                bar.advance(task)
        steps = {name: runner.steps() for name, runner in runners.items()}
        background = {name: runner.background() for name, runner in runners.items()}
    return Measured(
        wall={name: _by_round(slices, name, [(one.at, one.at) for one in steps[name]]) for name in steps},
        cpu={name: _by_round(slices, name, [(one.at, one.cpu_s) for one in steps[name]]) for name in steps},
        loop={name: _by_round(slices, name, [(one.at, one.loop_s) for one in steps[name]]) for name in steps},
        background=background,
    )


def _by_round(slices: list[Slice], name: str, times: list[tuple[float, float]]) -> list[list[float]]:
    own = sorted((one for one in slices if one.contender == name), key=lambda one: one.round)
    return [durations(times, one) for one in own]


def _start(stack: contextlib.ExitStack, entrant: Entrant, folder: Path, nproc: int) -> Runner:
    steps = folder / "steps"
    steps.mkdir(parents=True)
    env = {
        **os.environ,
        **entrant.contender.env,
        "EVERSTEP_BENCH_DIR": str(steps),
        "EVERSTEP_BENCH_SNAPSHOTS": entrant.snapshots,
        "EVERSTEP_HOME": str(folder),
        "TMPDIR": str(folder),
    }
    line = [*entrant.contender.line(TIMED, nproc), str(SCRIPT), "--steps", "1000000"]
    if entrant.config:
        config = folder / "everstep.toml"
        config.write_text(entrant.config)
        at = len(entrant.contender.command)
        line[at:at] = ["--config", str(config)]
    running = stack.enter_context(launched(line, env=env, output=folder / "output.log"))
    return Runner(entrant.name, running, StepLogs(steps))


def report(measured: Measured, nproc: int) -> str:
    baseline = measured.baseline
    lines = [f"Step time of examples/train_gpt.py, {nproc} ranks, in turns with {baseline}", ""]
    for title, clock in (("step, wall clock", measured.wall), ("step, CPU of rank 0", measured.cpu)):
        rows = [(name, _ms(clock[name]), *_cells(cost(clock[name], clock[baseline]))) for name in clock]
        rows[0] = (*rows[0][:2], "", "")
        if WITH in clock:
            rows.append(("  of it the snapshots", "", *_cells(cost(clock[WITH], clock[WITHOUT]))))
        lines += [table((title, "typical", "added", "95 % interval"), rows), ""]
    for name in measured.wall:
        inside = _loop_share(measured, name)
        share = "—" if inside is None else f"{inside:.3%}"
        beside = f"{measured.background[name]:.2%} of a core"
        lines.append(f"{name}: {share} of the step inside State, {beside} in other processes than the ranks")
    lines += [
        "",
        "typical: lower quartile of all steps. added: to the first line's; interval: from drawing rounds again.",
    ]
    return "\n".join(lines)


def _ms(rounds: list[list[float]]) -> str:
    value = typical(rounds)
    return "—" if value is None else f"{value * 1000:.2f} ms"


def _loop_share(measured: Measured, name: str) -> float | None:
    """Seconds that the training thread waited in State, of all seconds: measured inside, so no other run is needed."""
    waited = sum(one for steps in measured.loop[name] for one in steps)
    total = sum(one for steps in measured.wall[name] for one in steps)
    return waited / total if total else None


def _cells(cost: Cost | None) -> tuple[str, str]:
    return ("—", "—") if cost is None else (f"{cost.share:+.2%}", f"{cost.low:+.2%} to {cost.high:+.2%}")


def _document(measured: Measured, args: argparse.Namespace) -> dict[str, object]:
    def costs(clock: dict[str, list[list[float]]]) -> dict[str, object]:
        found = {name: cost(clock[name], clock[measured.baseline]) for name in list(clock)[1:]}
        if WITH in clock:
            found["snapshots"] = cost(clock[WITH], clock[WITHOUT])
        return {name: asdict(one) if one else None for name, one in found.items()}

    return {
        "benchmark": "overhead",
        "nproc": args.nproc,
        "slice_s": args.slice,
        "python": sys.version.split()[0],
        "added_wall": costs(measured.wall),
        "added_cpu": costs(measured.cpu),
        "share_inside_state": {name: _loop_share(measured, name) for name in measured.wall},
        "background_cores": measured.background,
        "steps_wall_s": measured.wall,
        "steps_cpu_s": measured.cpu,
        "steps_inside_state_s": measured.loop,
    }


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--probes", action="store_true", help="compare everstep with and without all that it watches")
    parser.add_argument("--rounds", type=int, default=60, help="turns of each training (default %(default)s)")
    parser.add_argument("--slice", type=float, default=1.5, help="seconds of a turn (default %(default)s)")
    parser.add_argument("--nproc", type=int, default=2, help="ranks; no more than cores (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
