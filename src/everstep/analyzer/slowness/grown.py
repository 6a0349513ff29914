"""Which rank's own waiting grew: its quota, a disk, or sleeping by itself, against its own past and the others. Pure.

On a machine with more to run than CPUs, compute times differ from rank to rank by chance, and the vote sees nothing.
What the kernel says of one rank is not chance: these parts hold what is left when waiting for a CPU is taken out.
"""

import statistics
from collections.abc import Mapping, Sequence

import msgspec

from everstep.analyzer.observations.records import RankTiming
from everstep.analyzer.observations.words import per_step

MIN_SHARE = 0.08
"""Of a step, as for a slow machine."""

MIN_S = 0.005
MIN_ERRORS = 4.0
"""Times what is not known of its mean."""

MIN_USUAL = 4
"""Rounds; fewer say nothing of how much a part varies by itself."""

MIN_FACTOR = 1.5
"""Times what the others have."""

CHANCE = 0.25
"""Of its waiting for a CPU: where ranks wait long, so do the threads that send and receive for them."""

RUNS = 0.5
"""Of a step, the others have something to run for so long, or wait for a CPU; else a device may compute meanwhile."""

_QUOTA, _DISK, _OWN = "throttled_s", "io_s", ""
_PARTS = (
    (_QUOTA, "ES-S09", "is stopped by the CPU quota of its cgroup", "a restart elsewhere has the same limit"),
    (_DISK, "ES-S07", "waits for a disk or a server of files", "what it reads or writes is as slow from elsewhere"),
    (_OWN, "ES-S10", "neither computes nor waits for a CPU: it slept or waited for something of its own,",
     "a restart elsewhere does the same"),
)  # fmt: skip


class Grown(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    rank: int
    now_s: float  # per step
    usual_s: float
    says: str  # "rank 1 waits for a disk or a server of files for 160 ms per step, usually 1 ms, the others 1 ms"
    cure: str  # why nobody is evicted


def find_grown(
    rounds: Sequence[Sequence[RankTiming]], usual_rounds: Sequence[Sequence[RankTiming]], min_votes: int
) -> Grown | None:
    """The first part that grew for one rank and not for the others, in at least `min_votes` of the rounds."""
    for part, code, what, cure in _PARTS:
        now, usual = _by_rank(rounds, part), _by_rank(usual_rounds, part)
        ranks = [rank for rank in now if len(now[rank]) >= min_votes and len(usual.get(rank, ())) >= MIN_USUAL]
        if len(ranks) < 2 or (part == _OWN and not _run(rounds)):
            continue
        grown = {rank: statistics.fmean(now[rank]) - statistics.median(usual[rank]) for rank in ranks}
        rank = max(ranks, key=lambda each: grown[each])
        theirs_s = statistics.median(grown[each] for each in ranks if each != rank)
        least_s = max(MIN_S, MIN_SHARE * _step_s(rounds), MIN_ERRORS * _error_s(now[rank], usual[rank]))
        if part == _OWN:
            least_s = max(least_s, CHANCE * _delay_s(rounds, rank))
        others_s = statistics.median(statistics.fmean(now[each]) for each in ranks if each != rank)
        if grown[rank] - max(0.0, theirs_s) < least_s or statistics.fmean(now[rank]) < MIN_FACTOR * others_s:
            continue
        votes = sum(value - statistics.median(usual[rank]) >= least_s / 2 for value in now[rank])
        if votes < min_votes:
            continue
        now_s, usual_s = statistics.fmean(now[rank]), statistics.median(usual[rank])
        figures = f"for {_ms(now_s)} per step, usually {_ms(usual_s)}, the others {_ms(others_s)}"
        says = f"rank {rank} {what} {figures}"
        return Grown(code=code, rank=rank, now_s=now_s, usual_s=usual_s, says=says, cure=cure)
    return None


def _ms(seconds: float) -> str:
    return per_step(max(0.0, seconds))


def _by_rank(rounds: Sequence[Sequence[RankTiming]], part: str) -> Mapping[int, list[float]]:
    found: dict[int, list[float]] = {}
    for timing in (each for timings in rounds for each in timings):
        value: float | None = getattr(timing, part) if part else _own_s(timing)
        if value is not None:
            found.setdefault(timing.rank, []).append(value)
    return found


def _own_s(timing: RankTiming) -> float | None:
    """Seconds of a step in which its thread neither ran, nor waited for a CPU, a disk or another rank."""
    if timing.cpu_s is None or timing.delay_s is None:
        return None
    return timing.compute_s - timing.cpu_s - timing.delay_s - (timing.io_s or 0.0)


def _run(rounds: Sequence[Sequence[RankTiming]]) -> bool:
    every = [each for timings in rounds for each in timings]
    runs = [(each.cpu_s or 0.0) + (each.delay_s or 0.0) for each in every]
    return statistics.median(runs) >= RUNS * statistics.median(each.compute_s for each in every)


def _step_s(rounds: Sequence[Sequence[RankTiming]]) -> float:
    return statistics.median(each.compute_s for timings in rounds for each in timings)


def _error_s(now: Sequence[float], usual: Sequence[float]) -> float:
    """Of the difference of both means, from their scatter."""
    parts = (statistics.variance(each) / len(each) if len(each) > 1 else 0.0 for each in (now, usual))
    return float(sum(parts) ** 0.5)


def _delay_s(rounds: Sequence[Sequence[RankTiming]], rank: int) -> float:
    waits = [each.delay_s or 0.0 for timings in rounds for each in timings if each.rank == rank]
    return statistics.fmean(waits) if waits else 0.0
