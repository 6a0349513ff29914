"""Burn-in: computes, copies and writes for hours, and watches for digests that change and figures that drift.

`Series` is pure: rounds of results in, judged results out. `burn_in` runs the rounds; each is a fresh process, so a
crash ends one round and is counted. Called by `everstep check --burn-in`.
"""

import time
from collections.abc import Callable, Sequence

import msgspec

from everstep.preflight import light
from everstep.preflight.inspection import Wanted
from everstep.preflight.judge import against_numbers, by_limits
from everstep.preflight.result import Better, Judgement, Report, Result
from everstep.preflight.running.runner import OnProgress, run_checks
from everstep.preflight.settings import Level

ROUND = ("compute", "gpu_compute", "bandwidth", "collective", "endtoend")
_DISK_EVERY_S = 60.0  # a round of it writes 256 MiB per directory: hours of that in a row would wear the disk
_MIN_ROUNDS = 8  # below, quarters are too small for a median
_MAX_FINDINGS = 50


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """For people, after each round."""

    number: int
    bad: int
    left_s: float


def _news(inspection: Sequence[Result]) -> list[Result]:
    """List what the node's own counters report for the time of the round; the rest of the inspection does not concern
    what is burnt in."""
    return [
        result
        for result in inspection
        if result.verdict is Judgement.BAD
        or (result.verdict is Judgement.WARN and result.baseline_from == light.BEFORE)
    ]


class Series:
    """The results of all rounds, per metric: the values, and the first round that went wrong."""

    def __init__(self) -> None:
        self.num_rounds = 0
        self._values: dict[str, list[float]] = {}
        self._digests: dict[str, dict[str, int]] = {}  # name -> digest -> round in which it was first seen
        self._last: dict[str, Result] = {}
        self._findings: list[tuple[int, Result]] = []
        self._num_bad = 0

    def add(self, results: Sequence[Result]) -> int:
        """Number of bad results of this round."""
        self.num_rounds += 1
        for result in results:
            self._last[result.name] = result
            if result.name.endswith("digest") and isinstance(result.value, str):
                self._digests.setdefault(result.name, {}).setdefault(result.value, self.num_rounds)
            elif isinstance(result.value, int | float) and result.better in (Better.HIGHER, Better.LOWER):
                self._values.setdefault(result.name, []).append(float(result.value))
        worth = [result for result in results if result.verdict in (Judgement.BAD, Judgement.WARN)]
        self._findings += [(self.num_rounds, result) for result in worth][: _MAX_FINDINGS - len(self._findings)]
        bad = sum(result.verdict is Judgement.BAD for result in worth)
        self._num_bad += bad
        return bad

    def results(self) -> list[Result]:
        how = f"{self.num_rounds} rounds"
        found = [
            Result(name="burn_in.rounds", value=self.num_rounds, unit="rounds", how="rounds of the burn-in"),
            Result(
                name="burn_in.failures", value=self._num_bad, unit="results", how=how, better=Better.LOWER, baseline=0,
                baseline_from="limit", verdict=Judgement.BAD if self._num_bad else Judgement.OK,
                why=f"{self._num_bad} results of the rounds were bad" if self._num_bad else "",
            ),
        ]  # fmt: skip
        found += [self._digest(name, seen, how) for name, seen in self._digests.items()]
        found += [self._drift(name, values) for name, values in self._values.items()]
        for number, result in self._findings:
            why = f"in round {number}: {result.why}"
            found.append(msgspec.structs.replace(result, name=f"burn_in.round{number}.{result.name}", why=why))
        return found

    def _digest(self, name: str, seen: dict[str, int], how: str) -> Result:
        first, *others = seen
        parted = f"another digest in round {seen[others[0]]}: {others[0]}" if others else ""
        return Result(
            name=f"burn_in.{name}", value=first, how=f"compared over {how}", better=Better.SAME, tolerance=0.0,
            verdict=Judgement.BAD if others else Judgement.OK if self.num_rounds > 1 else Judgement.NOTED,
            why=parted or f"the same in all {how}",
        )  # fmt: skip

    def _drift(self, name: str, values: list[float]) -> Result:
        """The last quarter's median against the first quarter's values."""
        last = self._last[name]
        fresh = msgspec.structs.replace(
            last, name=f"burn_in.{name}.drift", verdict=Judgement.NOTED, why="", baseline=None, baseline_from=""
        )
        if len(values) < _MIN_ROUNDS:
            why = f"measured in {len(values)} rounds; drift needs {_MIN_ROUNDS}"
            return msgspec.structs.replace(fresh, value=None, verdict=Judgement.UNSUPPORTED, why=why)
        quarter = len(values) // 4
        recent = sorted(values[-quarter:])[quarter // 2]
        how = f"median of the last {quarter} of {len(values)} rounds, against the first {quarter}"
        moved = msgspec.structs.replace(fresh, value=recent, how=how)
        return against_numbers(moved, values[:quarter], "first quarter of the burn-in")


def burn_in(
    wanted: Wanted, seconds: float, on_progress: OnProgress, on_round: Callable[[Round], None], first: Report
) -> Report:
    """`first`: the inspection before it, whose results the report keeps. Ctrl-C ends it early, with what there is."""
    begun = time.monotonic()
    series = Series()
    settings = msgspec.structs.replace(wanted.settings, level=Level.BURN_IN)
    interrupted = first.interrupted
    disk_at = -_DISK_EVERY_S
    before = light.inspect(root=settings.root)
    try:
        while not interrupted and (series.num_rounds == 0 or time.monotonic() - begun < seconds):
            names = [name for name in ROUND if name in wanted.checks]
            if "disk" in wanted.checks and time.monotonic() - disk_at >= _DISK_EVERY_S:
                names.append("disk")
                disk_at = time.monotonic()
            found = by_limits(run_checks(names, settings, on_progress))
            now = light.inspect(before, root=settings.root)
            bad = series.add([*found, *_news(now)])
            before = now
            on_round(Round(number=series.num_rounds, bad=bad, left_s=max(0.0, seconds - (time.monotonic() - begun))))
    except KeyboardInterrupt:
        interrupted = True
    took_s = first.took_s + time.monotonic() - begun
    results = (*first.results, *series.results())
    return msgspec.structs.replace(first, results=results, level="burn-in", took_s=took_s, interrupted=interrupted)
