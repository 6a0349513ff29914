"""Place of each rank in the pipelines, and its time against the other ranks of that place. Pure.

The last stage has the output layer, the first the embedding: ranks of different stages differ by design. Only the ranks
of one stage, in the different pipelines, do the same work. If sequences differ in length, all stages of a pipeline take
longer together, so a change that the whole pipeline has is not the rank's own.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from everstep.analyzer.observations.records import ParallelGroup, RankTiming

LESS = 0.8
"""Pipelines rise and fall together if the scatter within them is below this share of the whole; with equal work it is
larger."""


_POLISHES = 3
"""After so many rounds of polishing, the values hardly move."""

MUCH = 0.025
"""A smaller scatter is noise; its causes do not matter."""


class Place(NamedTuple):
    stage: int
    pipeline: int


Places: TypeAlias = dict[int, Place]
"""Place by rank. Empty: the job has no pipelines, or they are unknown."""


def places_of(groups: Sequence[ParallelGroup], ranks: Sequence[int]) -> Places:
    """Places from the pipeline groups, if they give one stage for each of `ranks`; else empty."""
    pipelines = [g.ranks for g in groups if g.kind == "pp" and len(g.ranks) > 1]
    places: Places = {}
    for number, pipeline in enumerate(pipelines):
        for stage, rank in enumerate(pipeline):
            if rank in places:
                return {}
            places[rank] = Place(stage, number)
    lengths = {len(pipeline) for pipeline in pipelines}
    return places if len(lengths) == 1 and set(ranks) <= set(places) else {}


def peers_of(rank: int, places: Places, ranks: Sequence[int]) -> list[int]:
    """The other ranks of its stage; without pipelines, all other ranks."""
    if not places:
        return [other for other in ranks if other != rank]
    return [other for other in ranks if other != rank and places[other].stage == places[rank].stage]


def levelled(
    timings: Sequence[RankTiming], places: Places, first: Mapping[int, RankTiming], *, together: bool
) -> tuple[list[RankTiming], set[int]]:
    """The timings as if all places had the same work, and the ranks for which that is unknown: alone in their stage,
    and without a known beginning. `together`: pipelines rise and fall as a whole (`rise_together`)."""
    if not places:
        return list(timings), set()
    compute_s = {timing.rank: timing.compute_s for timing in timings}
    shares = _shares(compute_s, places, first, together=together)
    waits = {} if together else _waits(timings, places)
    usual = statistics.median(timing.compute_s for timing in timings)
    found = []
    for timing in timings:
        share = shares.get(timing.rank, 1.0)
        scale = usual * share / timing.compute_s if timing.compute_s > 0 else 1.0
        parts: dict[str, float | None] = {
            name: value * scale
            for name in ("error_s", "data_s", "gc_s", "delay_s", "throttled_s", "io_s", "cpu_s")
            if (value := getattr(timing, name)) is not None
        }
        parts["wait_s"] = waits.get(timing.rank)
        found.append(msgspec.structs.replace(timing, compute_s=usual * share, **parts))
    return found, {timing.rank for timing in timings} - set(shares)


def _waits(timings: Sequence[RankTiming], places: Places) -> dict[int, float]:
    """Seconds that each rank waits longer than its peers: short stages always wait for the long stage."""
    waits = {timing.rank: timing.wait_s for timing in timings if timing.wait_s is not None}
    found = {}
    for rank, wait_s in waits.items():
        others = [waits[other] for other in peers_of(rank, places, list(waits))]
        found[rank] = wait_s - statistics.median(others) if others else 0.0
    return found


def rise_together(
    rounds: Sequence[Mapping[int, float]], places: Places, first: Mapping[int, RankTiming] | None = None
) -> bool:
    """Whether all stages of a pipeline take longer in the same rounds, as with sequences of uneven length."""
    if not places:
        return False
    if _is_one_pipeline(places):
        apart = [against_stage(compute_s, places, first or {}) for compute_s in rounds]
        much, within = _scatter(apart), _scatter([_within_pipeline(shares, places) for shares in apart])
        return much > MUCH and within < LESS * much
    stages = [_logs(compute_s) for compute_s in rounds]
    for rest in stages:
        _level(rest, _ranks_of(rest, places, "stage"))
    polished = [_polished(compute_s, places) for compute_s in rounds]
    num_stages = len({place.stage for place in places.values()})
    # With few stages, the fit removes much of mere noise.
    much, fitted = _scatter(stages), math.sqrt(1 - 1 / num_stages)
    return much > MUCH and _scatter(polished) < LESS * fitted * much


def ratios(compute_s: Mapping[int, float], places: Places, *, together: bool) -> dict[int, float]:
    """Each rank's time over the usual time at its place; without ranks for which that is unknown."""
    return _shares(compute_s, places, {}, together=together)


def _shares(
    compute_s: Mapping[int, float], places: Places, first: Mapping[int, RankTiming], *, together: bool
) -> dict[int, float]:
    if together and not _is_one_pipeline(places):
        return against_stage(_evened(compute_s, places), places, {})
    shares = against_stage(compute_s, places, first)
    return _within_pipeline(shares, places) if together else shares


def _is_one_pipeline(places: Places) -> bool:
    return len({place.pipeline for place in places.values()}) == 1


def against_stage(compute_s: Mapping[int, float], places: Places, first: Mapping[int, RankTiming]) -> dict[int, float]:
    """Each rank's time over that of the other ranks of its stage."""
    of_stage: defaultdict[int, list[int]] = defaultdict(list)
    for rank in compute_s:
        of_stage[places[rank].stage].append(rank)
    found = {}
    for rank, value in compute_s.items():
        others = [compute_s[other] for other in of_stage[places[rank].stage] if other != rank]
        like = _like(value, others, first.get(rank))
        if like is not None and like > 0:
            found[rank] = value / like
    return found


def _like(value: float, others: list[float], begun: RankTiming | None) -> float | None:
    """The time to compare with: the median of the faster half of its peers, so that a second slow peer does not hide
    the first; with one peer, the smaller of both times, so that no rank looks fast because the other is slow; without
    peers, its own beginning."""
    if len(others) == 1:
        return min(value, others[0])
    if others:
        return statistics.median(sorted(others)[: len(others) // 2 + 1])
    return begun.compute_s if begun is not None else None


def _within_pipeline(shares: Mapping[int, float], places: Places) -> dict[int, float]:
    """Each share over that of the other stages of the rank's pipeline."""
    of_pipeline = _ranks_of(shares, places, "pipeline")
    found = {}
    for rank, share in shares.items():
        others = [shares[other] for other in of_pipeline[places[rank].pipeline] if other != rank]
        found[rank] = share / max(1e-9, statistics.median(others)) if others else share
    return found


def _evened(compute_s: Mapping[int, float], places: Places) -> dict[int, float]:
    """The times without the part that all stages of a pipeline share. With two stages, the smaller value is that part:
    a rank can be slow, but not faster than its machine."""
    rest = _polished(compute_s, places)
    of_pipeline = _ranks_of(rest, places, "pipeline")
    if all(len(ranks) == 2 for ranks in of_pipeline.values()):
        for ranks in of_pipeline.values():
            least = min(rest[rank] for rank in ranks)
            rest |= {rank: rest[rank] - least for rank in ranks}
    return {rank: math.exp(value) for rank, value in rest.items()}


def _polished(compute_s: Mapping[int, float], places: Places) -> dict[int, float]:
    """Logarithms of the times, minus the usual value of each rank's stage and pipeline (Tukey's median polish).
    Pipelines come first: a slow rank moves one difference in its pipeline, but the order in its stage."""
    rest = _logs(compute_s)
    both = [_ranks_of(rest, places, "pipeline"), _ranks_of(rest, places, "stage")]
    for _ in range(_POLISHES):
        for groups in both:
            _level(rest, groups)
    return rest


def _logs(compute_s: Mapping[int, float]) -> dict[int, float]:
    return {rank: math.log(max(value, 1e-9)) for rank, value in compute_s.items()}


def _level(rest: dict[int, float], groups: Mapping[int, list[int]]) -> None:
    for ranks in groups.values():
        middle = statistics.median(rest[rank] for rank in ranks)
        for rank in ranks:
            rest[rank] -= middle


def _ranks_of(ranks: Mapping[int, float], places: Places, what: str) -> dict[int, list[int]]:
    found: defaultdict[int, list[int]] = defaultdict(list)
    for rank in ranks:
        found[getattr(places[rank], what)].append(rank)
    return found


def _scatter(rounds: Sequence[Mapping[int, float]]) -> float:
    """Scatter around the median of each round, as the mean over the rounds."""
    each = []
    for shares in rounds:
        middle = statistics.median(shares.values()) if shares else 0.0
        each.append(statistics.median(abs(share - middle) for share in shares.values()) if shares else 0.0)
    return statistics.fmean(each) if each else 0.0


def whole_pipeline(ranks: Sequence[int], groups: Sequence[ParallelGroup]) -> ParallelGroup | None:
    """The one pipeline that contains all of `ranks`, if they are at least half of it."""
    for group in groups:
        is_pipeline = group.kind == "pp" and len(group.ranks) > 1
        if is_pipeline and len(ranks) > 1 and set(ranks) <= set(group.ranks) and 2 * len(ranks) >= len(group.ranks):
            return group
    return None
