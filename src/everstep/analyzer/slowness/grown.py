"""Finds the rank with a grown wait of its own: quota, disk, lock, or sleep, against its own past and the other ranks.
Pure.

On a machine with more to run than CPUs, compute times differ from rank to rank by chance, and the vote finds nothing.
The kernel's figures for one rank are not chance: these parts are what remains without the waits for a CPU. Parts that
the kernel counts are compared round by round, with the others of that round; parts from samples, or from subtraction,
are compared as means over the rounds.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from everstep.analyzer.observations.records import RankTiming
from everstep.analyzer.observations.words import per_step
from everstep.analyzer.slowness.off_cpu import FILE_LOCK, FUTEX, GROUP_RECLAIM, RECLAIM, SWAP, TIMER

MIN_SHARE = 0.08
"""Share of a step, as for a slow machine. If the kernel saw each sleep, it is a share of the step without waits for
CPUs: these waits do not make the other waits less certain."""

MIN_S = 0.005
MIN_ERRORS = 4.0
"""Multiple of the error of its mean."""

SPREADS = 4.0
"""Multiple of the usual scatter."""

TO_SIGMA = 1.4826
MIN_USUAL = 4
"""Rounds; fewer do not show how much a part varies by itself."""

MIN_FACTOR = 1.5
"""Multiple of the others' value."""

CHANCE = 0.25
"""Share of its wait for a CPU: if ranks wait long, the threads that send and receive for them do too."""

RUNS = 0.5
"""Share of a step in which the other ranks run or wait for a CPU; below it a device may compute meanwhile."""

WAITED_FOR = 0.5
"""Share of the longer sleep: if another rank has this much more to do, the sleeper may wait for it."""

SURE_SHARE, SURE_VOTES = 0.25, 3
"""Share of a step: if a quota stops a rank for this long it is not chance, and its rounds take longer too."""

_QUOTA, _FILES, _DISK, _LOCKS, _TIMER, _OWN = "throttled_s", "files", "io_s", "locks", "timer", ""
_LOCK_KINDS = (FUTEX, FILE_LOCK)
_NO_FILES = (*_LOCK_KINDS, SWAP, RECLAIM, GROUP_RECLAIM, TIMER)
_SEEN = (_FILES, _LOCKS, _TIMER)
"""From each sleep that the kernel reported (eBPF), not from samples."""

_IDLE = (_TIMER, _OWN)
"""Parts in which a thread may also wait for another rank, in a way that no collective shows."""

_COUNTED = (_QUOTA, *_SEEN)
_ON_DISK = ("ES-S07", "waits for a disk or a server of files", "what it reads or writes is as slow from elsewhere")
_PARTS = (
    (_QUOTA, "ES-S09", "is stopped by the CPU quota of its cgroup", "a restart elsewhere has the same limit"),
    (_FILES, *_ON_DISK),
    (_DISK, *_ON_DISK),
    (_LOCKS, "ES-S10", "waits for a lock that another process holds,", "a restart elsewhere waits for it as well"),
    (_TIMER, "ES-S10", "sleeps on a timer that its own program set,", "a restart elsewhere does the same"),
    (_OWN, "ES-S10", "neither computes nor waits for a CPU: it slept or waited for something of its own,",
     "a restart elsewhere does the same"),
)  # fmt: skip


class Grown(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    rank: int
    now_s: float  # per step
    usual_s: float
    says: str  # "rank 1 waits for a disk or a server of files for 160 ms per step, usually 1 ms, the others 1 ms"
    cure: str  # why no node is evicted


class _Excess(msgspec.Struct, frozen=True, kw_only=True):
    """The excess of one rank, in seconds per step."""

    rank: int
    now_s: float
    usual_s: float
    others_s: float
    step_s: float = 0.0


def find_grown(
    rounds: Sequence[Sequence[RankTiming]], usual_rounds: Sequence[Sequence[RankTiming]], min_votes: int
) -> Grown | None:
    """The first part that grew for one rank and not for the others, in at least `min_votes` of the rounds."""
    return next(every_grown(rounds, usual_rounds, min_votes), None)


def every_grown(
    rounds: Sequence[Sequence[RankTiming]],
    usual_rounds: Sequence[Sequence[RankTiming]],
    min_votes: int,
    *,
    counted: bool | None = None,
) -> Iterator[Grown]:
    """Each such part, with the rank for which it grew most; certain ones first. `counted`: True: only parts that the
    kernel counts; False: only the others; None: all."""
    for part, code, what, cure in _PARTS:
        is_counted = part in _COUNTED
        if counted is not None and counted != is_counted:
            continue
        find = _by_votes if is_counted else _by_means
        found = find(part, rounds, usual_rounds, min_votes)
        if found is not None and not (part in _IDLE and _may_wait_for_another(found, rounds, usual_rounds)):
            now_s, usual_s, others_s = found.now_s, found.usual_s, found.others_s
            figures = f"for {_ms(now_s)} per step, usually {_ms(usual_s)}, the others {_ms(others_s)}"
            says = f"rank {found.rank} {what} {figures}"
            yield Grown(code=code, rank=found.rank, now_s=now_s, usual_s=usual_s, says=says, cure=cure)


def _may_wait_for_another(
    found: _Excess, rounds: Sequence[Sequence[RankTiming]], usual_rounds: Sequence[Sequence[RankTiming]]
) -> bool:
    """Whether another rank has more to do by that much: a rank that sleeps until a file of that rank exists waits for
    it."""
    now, usual = _busy(rounds), _busy(usual_rounds)
    grown = [
        statistics.fmean(now[rank]) - statistics.median(usual[rank])
        for rank in now
        if rank != found.rank and rank in usual
    ]
    return max(grown, default=0.0) >= WAITED_FOR * (found.now_s - found.usual_s)


def _busy(rounds: Sequence[Sequence[RankTiming]]) -> dict[int, list[float]]:
    """For each rank, seconds per step in which its thread ran, or waited for a disk or a lock. Waits for a CPU are left
    out: they vary by themselves, and a rank that waits longer for one is named before."""
    found: dict[int, list[float]] = {}
    for t in (each for timings in rounds for each in timings):
        if t.cpu_s is not None:
            held_s = sum(s for kind, s in (t.held or {}).items() if kind != TIMER)
            found.setdefault(t.rank, []).append(t.cpu_s + max(t.io_s or 0.0, held_s))
    return found


def _by_votes(
    part: str, rounds: Sequence[Sequence[RankTiming]], usual_rounds: Sequence[Sequence[RankTiming]], min_votes: int
) -> _Excess | None:
    usual = {rank: values for rank, values in _by_rank(usual_rounds, part).items() if len(values) >= MIN_USUAL}
    votes: defaultdict[int, list[_Excess]] = defaultdict(list)
    for timings in rounds:
        worst = _worst(part, timings, usual)
        if worst is not None:
            votes[worst.rank].append(worst)
    most = max(votes.values(), key=len, default=[])
    is_sure = part == _QUOTA and all(each.now_s - each.usual_s >= SURE_SHARE * each.step_s for each in most)
    if len(most) < (min(SURE_VOTES, min_votes) if is_sure else min_votes):
        return None
    return msgspec.structs.replace(
        most[-1],
        now_s=statistics.fmean(each.now_s for each in most),
        others_s=statistics.fmean(each.others_s for each in most),
    )


def _worst(part: str, timings: Sequence[RankTiming], usual: Mapping[int, Sequence[float]]) -> _Excess | None:
    """In one round, the rank with the largest growth, if the other ranks of the round do not wait as long."""
    now = {t.rank: value for t in timings if t.rank in usual and (value := _value(t, part)) is not None}
    if len(now) < 2:
        return None
    grown = {rank: value - statistics.median(usual[rank]) for rank, value in now.items()}
    rank = max(grown, key=lambda each: grown[each])
    others_s = statistics.median(now[each] for each in now if each != rank)
    theirs_s = statistics.median(grown[each] for each in grown if each != rank)
    step_s = _step_s([timings], without_delay=part in _SEEN)
    least_s = max(MIN_S, MIN_SHARE * step_s, SPREADS * _spread(usual[rank]))
    if grown[rank] - max(0.0, theirs_s) < least_s or now[rank] < MIN_FACTOR * others_s:
        return None
    usual_s = statistics.median(usual[rank])
    return _Excess(rank=rank, now_s=now[rank], usual_s=usual_s, others_s=others_s, step_s=step_s)


def _by_means(
    part: str, rounds: Sequence[Sequence[RankTiming]], usual_rounds: Sequence[Sequence[RankTiming]], min_votes: int
) -> _Excess | None:
    now, usual = _by_rank(rounds, part), _by_rank(usual_rounds, part)
    ranks = [rank for rank in now if len(now[rank]) >= min_votes and len(usual.get(rank, ())) >= MIN_USUAL]
    if len(ranks) < 2 or (part == _OWN and not _run(rounds)):
        return None
    grown = {rank: statistics.fmean(now[rank]) - statistics.median(usual[rank]) for rank in ranks}
    rank = max(ranks, key=lambda each: grown[each])
    theirs_s = statistics.median(grown[each] for each in ranks if each != rank)
    step_s = _step_s(rounds, without_delay=False)
    least_s = max(MIN_S, MIN_SHARE * step_s, MIN_ERRORS * _error_s(now[rank], usual[rank]))
    if part == _OWN:
        least_s = max(least_s, CHANCE * _delay_s(rounds, rank))
    now_s, usual_s = statistics.fmean(now[rank]), statistics.median(usual[rank])
    others_s = statistics.median(statistics.fmean(now[each]) for each in ranks if each != rank)
    if grown[rank] - max(0.0, theirs_s) < least_s or now_s < MIN_FACTOR * others_s:
        return None
    votes = sum(value - usual_s >= least_s / 2 for value in now[rank])
    return _Excess(rank=rank, now_s=now_s, usual_s=usual_s, others_s=others_s) if votes >= min_votes else None


def _ms(seconds: float) -> str:
    return per_step(max(0.0, seconds))


def _by_rank(rounds: Sequence[Sequence[RankTiming]], part: str) -> Mapping[int, list[float]]:
    found: dict[int, list[float]] = {}
    for timing in (each for timings in rounds for each in timings):
        value = _value(timing, part)
        if value is not None:
            found.setdefault(timing.rank, []).append(value)
    return found


def _value(timing: RankTiming, part: str) -> float | None:
    if part == _OWN:
        return _own_s(timing)
    if part not in _SEEN:
        value: float | None = getattr(timing, part)
        return value
    if part == _TIMER:
        # With a device, the main thread may sleep while the device computes, and no rank waits for it.
        return None if timing.held is None or timing.cpu_s is None else timing.held.get(TIMER, 0.0)
    return in_locks(timing) if part == _LOCKS else in_files(timing)


def in_locks(timing: RankTiming) -> float | None:
    """Seconds per step that its main thread slept for locks of other processes; None: not observed."""
    return None if timing.held is None else sum(s for kind, s in timing.held.items() if kind in _LOCK_KINDS)


def in_files(timing: RankTiming) -> float | None:
    """Seconds per step that its main thread slept in system calls on files; None: not observed."""
    return None if timing.held is None else sum(s for kind, s in timing.held.items() if kind not in _NO_FILES)


def _own_s(timing: RankTiming) -> float | None:
    """Seconds per step in which its thread neither ran, nor waited for a CPU, a disk or another rank, and for which the
    kernel reported no reason."""
    if timing.cpu_s is None or timing.delay_s is None:
        return None
    held_s = sum((timing.held or {}).values())
    return timing.compute_s - timing.cpu_s - timing.delay_s - max(timing.io_s or 0.0, held_s)


def _run(rounds: Sequence[Sequence[RankTiming]]) -> bool:
    every = [each for timings in rounds for each in timings]
    runs = [(each.cpu_s or 0.0) + (each.delay_s or 0.0) for each in every]
    return statistics.median(runs) >= RUNS * statistics.median(each.compute_s for each in every)


def _step_s(rounds: Sequence[Sequence[RankTiming]], *, without_delay: bool) -> float:
    every = [each for timings in rounds for each in timings]
    return statistics.median(each.compute_s - ((each.delay_s or 0.0) if without_delay else 0.0) for each in every)


def _spread(values: Sequence[float]) -> float:
    middle = statistics.median(values)
    return TO_SIGMA * statistics.median(abs(value - middle) for value in values)


def _error_s(now: Sequence[float], usual: Sequence[float]) -> float:
    """Error of the difference of both means, from their scatter."""
    parts = (statistics.variance(each) / len(each) if len(each) > 1 else 0.0 for each in (now, usual))
    return float(sum(parts) ** 0.5)


def _delay_s(rounds: Sequence[Sequence[RankTiming]], rank: int) -> float:
    waits = [each.delay_s or 0.0 for timings in rounds for each in timings if each.rank == rank]
    return statistics.fmean(waits) if waits else 0.0
