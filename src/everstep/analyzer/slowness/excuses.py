"""Reasons why a rank that takes longer is not a slow machine. Pure; used by `slow`.

Each excuse must explain most of the excess by a measured value. What was not measured is no excuse.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

import msgspec

from everstep.analyzer.observations.records import ParallelGroup, RankTiming
from everstep.analyzer.observations.words import ranks_text, verb
from everstep.analyzer.slowness.grown import in_files, in_locks
from everstep.analyzer.slowness.places import peers_of, places_of

MIN_GROWTH = 0.08
"""Share of the others' time: a lead that was large from the beginning and grows by less is the same lead."""


MOSTLY, SPINS = 0.5, 1.2
"""Shares of the others' time: a program that computes on CPUs has something to run for `MOSTLY` of it, and CPU time
above `SPINS` is more than it can need."""


_Part = Callable[[RankTiming], float | None]

_DISK = "waiting for a disk or a server of files"
_PARTS: tuple[tuple[_Part, str, str], ...] = (
    (attrgetter("data_s"), "ES-S07", "waiting for the data loader"),
    (attrgetter("gc_s"), "ES-S06", "Python's garbage collector"),
    (attrgetter("throttled_s"), "ES-S09", "the CPU quota of its cgroup, which another machine has as well"),
    (attrgetter("io_s"), "ES-S07", _DISK),
    (in_files, "ES-S07", _DISK),
    (in_locks, "ES-S10", "waiting for a lock that another process holds"),
)


class Excuse(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    why: str


def mean_timings(rounds: Sequence[Sequence[RankTiming]]) -> dict[int, RankTiming]:
    """Mean timing of each rank over all rounds. A part that is missing in half of the rounds is missing in the mean."""
    by_rank: dict[int, list[RankTiming]] = {}
    for timings in rounds:
        for timing in timings:
            by_rank.setdefault(timing.rank, []).append(timing)
    return {rank: _mean(listed) for rank, listed in by_rank.items()}


def _mean(listed: list[RankTiming]) -> RankTiming:
    parts = {}
    for name in ("others_s", "wait_s", "data_s", "gc_s", "delay_s", "throttled_s", "io_s", "cpu_s", "work"):
        values = [getattr(timing, name) for timing in listed]
        known = [value for value in values if value is not None]
        parts[name] = statistics.fmean(known) if 2 * len(known) > len(values) else None
    held = [timing.held for timing in listed if timing.held is not None]
    kinds = dict.fromkeys(kind for each in held for kind in each)
    mean = {kind: statistics.fmean(each.get(kind, 0.0) for each in held) for kind in kinds}
    return msgspec.structs.replace(
        listed[0],
        compute_s=statistics.fmean(t.compute_s for t in listed),
        held=mean if 2 * len(held) > len(listed) else None,
        **parts,
    )


def find(
    ranks: tuple[int, ...],
    means: Mapping[int, RankTiming],
    groups: Sequence[ParallelGroup],
    first: Mapping[int, RankTiming],
    share: float,
) -> Excuse | None:
    """The first excuse that holds for all of the flagged ranks."""
    places = places_of(groups, sorted(means))
    rest = {rank for rank in means if rank not in ranks}
    peers = {other for rank in ranks for other in peers_of(rank, places, sorted(rest))} if places else set()
    others = [means[rank] for rank in sorted(peers or rest)]
    if not others:
        return None
    flagged = [means[rank] for rank in ranks]
    excess = statistics.fmean(t.compute_s for t in flagged) - statistics.median(t.compute_s for t in others)
    who = f"{ranks_text(ranks)} {verb(ranks, 'takes', 'take')} longer"
    for part, code, what in _PARTS:
        extra = _extra(part, flagged, others)
        if extra is not None and extra >= share * excess:
            return Excuse(code=code, why=f"{who}, and {min(1.0, extra / excess):.0%} of it is {what}")
    idle = _did_not_run(flagged, others, excess)
    if idle > 0 and idle >= share * excess:
        idle_share = f"{min(1.0, idle / excess):.0%} of it is not computing"
        why = f"{who}, and {idle_share}: it slept or waited for something of its own"
        return Excuse(code="ES-S10", why=why)
    if _work_explains(flagged, others, excess, share):
        has = verb(ranks, "it has", "they have")
        return Excuse(code="ES-S04", why=f"{who} because {has} more work: the time per unit of work is usual")
    # With peers, the stage was levelled out before the vote flagged a rank.
    stage = None if peers else long_stage(ranks, means, groups)
    if stage is not None:
        return stage
    # If replicas of its place are usual, the place does not explain it: it is slow, whenever that began.
    if not peers and _always_so(ranks, means, first):
        why = f"{who}, and did so by as much since the first steps: this job is made so, or the machine was slow before"
        return Excuse(code="ES-S08", why=why)
    return None


def long_stage(
    ranks: tuple[int, ...], means: Mapping[int, RankTiming], groups: Sequence[ParallelGroup]
) -> Excuse | None:
    """An excuse if the ranks are one stage of the pipelines, long in all of them."""
    others = [timing for rank, timing in means.items() if rank not in ranks]
    if not others:
        return None
    excess = statistics.fmean(means[r].compute_s for r in ranks) - statistics.median(t.compute_s for t in others)
    stage = _whole_stage(ranks, means, groups, excess)
    if not stage:
        return None
    who = f"{ranks_text(ranks)} {verb(ranks, 'takes', 'take')} longer"
    return Excuse(code="ES-S05", why=f"{who}: they are one pipeline stage in all of its replicas ({stage})")


def _extra(part: _Part, flagged: list[RankTiming], others: list[RankTiming]) -> float | None:
    mine: list[float] = [v for timing in flagged if (v := part(timing)) is not None]
    theirs: list[float] = [v for timing in others if (v := part(timing)) is not None]
    if len(mine) < len(flagged) or len(theirs) < len(others):
        return None
    return statistics.fmean(mine) - statistics.median(theirs)


def _did_not_run(flagged: list[RankTiming], others: list[RankTiming], excess: float) -> float:
    """Seconds of the excess in which the training thread had nothing to run. On a slow machine the thread runs longer.

    0 if that is unknown: the others have nothing to run for most of their time either (they wait for a device), or they
    burn CPU while they wait for the slow rank. A thread that waits for a CPU has something to run.
    """
    cpu = _extra(attrgetter("cpu_s"), flagged, others)
    delay = _extra(attrgetter("delay_s"), flagged, others)
    if cpu is None or delay is None:
        return 0.0
    usual = statistics.median(t.compute_s for t in others)
    burns = statistics.median(t.cpu_s or 0.0 for t in others)
    runs = statistics.median((t.cpu_s or 0.0) + (t.delay_s or 0.0) for t in others)
    if runs < MOSTLY * usual or burns > SPINS * usual:
        return 0.0
    return excess - max(0.0, cpu) - max(0.0, delay)


def _work_explains(flagged: list[RankTiming], others: list[RankTiming], excess: float, share: float) -> bool:
    """Whether the extra work, at the usual rate, explains the excess."""
    if any(t.work is None or t.work <= 0 for t in (*flagged, *others)):
        return False
    rate = statistics.median(t.compute_s / (t.work or 1.0) for t in others)
    extra = statistics.fmean(t.work or 0.0 for t in flagged) - statistics.median(t.work or 0.0 for t in others)
    return extra * rate >= share * excess


def _whole_stage(
    ranks: tuple[int, ...], means: Mapping[int, RankTiming], groups: Sequence[ParallelGroup], excess: float
) -> str:
    """Text that names the stage if the flagged ranks are all of one stage and that stage is long in every pipeline,
    also where its rank was flagged less often; else empty. One pipeline alone proves nothing, and one rank is no
    pipeline."""
    pipelines = [g for g in groups if g.kind == "pp" and len(g.ranks) > 1 and set(g.ranks) <= set(means)]
    if len(pipelines) < 2:
        return ""
    places = {group.ranks.index(rank) for group in pipelines for rank in ranks if rank in group.ranks}
    if len(places) != 1:
        return ""
    place = places.pop()
    stage = {group.ranks[place] for group in pipelines if place < len(group.ranks)}
    others = [t.compute_s for rank, t in means.items() if rank not in stage]
    if not others:
        return ""
    usual = statistics.median(others)
    is_long = all(means[rank].compute_s - usual >= excess / 2 for rank in stage)
    return f"stage {place} of {len(pipelines[0].ranks)}" if is_long and set(ranks) <= stage else ""


def _always_so(ranks: tuple[int, ...], means: Mapping[int, RankTiming], first: Mapping[int, RankTiming]) -> bool:
    """Whether the ranks had the same lead over the others at the beginning. A machine that was slow from the start
    looks the same; for that, delivery checks compare machines before a job runs."""
    if not set(ranks) <= set(first):
        return False
    leads = [(_lead(rank, ranks, first), _lead(rank, ranks, means)) for rank in ranks]
    return all(then >= 0.8 * now or (then >= 0.5 * now and now - then < MIN_GROWTH) for then, now in leads)


def _lead(rank: int, ranks: tuple[int, ...], timings: Mapping[int, RankTiming]) -> float:
    """Over the other ranks. First rounds of ranks that moved are of different moments, and a start is slower than what
    follows: there, over the others in the same round."""
    others = [t.compute_s for r, t in timings.items() if r not in ranks]
    known = timings[rank].others_s
    usual = known if known is not None else statistics.median(others) if others else 0.0
    return timings[rank].compute_s / usual - 1 if usual > 0 else 0.0
