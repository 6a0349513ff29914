"""Finds what makes a job uneven, from a trace: its stages, a worker, or the work of replicas. Pure.

Three shares of the step time, each by itself. A *stage* is long in all replicas: the model is cut unevenly. A *worker*
takes longer than the ranks of its place in nearly every step. A *replica* takes longer in some steps, in all of its
stages: its sequences are longer there. Only the worker's share points at a machine.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from everstep.analyzer.observations.records import ParallelGroup, RankTiming
from everstep.analyzer.observations.words import per_step, ranks_text
from everstep.analyzer.slowness.places import Place, Places, peers_of, places_of, ratios, rise_together, whole_pipeline

MIN_SHARE = 0.05
"""Share of the step time that is worth reporting."""

MIN_WORKER = 0.08
MIN_SPREADS = 6.0
"""Distance of a worker from the scatter of all ranks, in spreads. A trace has many ranks, so chance has many tries."""

MIN_STEPS = 3
LOW = 0.25
"""Share of a rank's steps that may be usual: a slow machine is slow in most steps."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of computing by rank and step, and the places if the trace has them."""

    compute_s: dict[int, dict[int, float]]
    places: dict[int, tuple[int, int]] = {}  # rank -> stage, pipeline
    notes: tuple[str, ...] = ()
    unit: str = "step"  # what the keys of `compute_s` count; "round" in a live run


class Share(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    sentence: str
    share: float  # share of the usual step
    ranks: tuple[int, ...] = ()  # workers only


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    stage: Share | None = None
    workers: Share | None = None
    work: Share | None = None
    why_not: str = ""

    @property
    def found(self) -> tuple[Share, ...]:
        """The worker's share first, because only that can be cured on another machine; then the largest."""
        rest = sorted((s for s in (self.stage, self.work) if s is not None), key=lambda s: -s.share)
        return (*([self.workers] if self.workers is not None else []), *rest)


def weigh(table: Table) -> Shares:
    """The shares that cost more than a few percent of the step time."""
    common = [step for step in _steps(table) if all(step in mine for mine in table.compute_s.values())]
    if len(table.compute_s) < 2 or len(common) < MIN_STEPS:
        why = f"{len(table.compute_s)} ranks with {len(common)} steps in common; 2 and {MIN_STEPS} are needed"
        return Shares(why_not=why)
    places: Places = {rank: Place(*place) for rank, place in table.places.items()}
    if set(places) != set(table.compute_s):
        places = {}
    by_step = {step: {rank: mine[step] for rank, mine in table.compute_s.items()} for step in common}
    workers = _workers(by_step, places, table.unit)
    slow = set(workers.ranks) if workers is not None else set()
    return Shares(stage=_stage(by_step, places, slow), workers=workers, work=_work(by_step, places, slow, table.unit))


def of_rounds(rounds: Iterable[Sequence[RankTiming]], groups: Sequence[ParallelGroup]) -> Shares:
    """The shares of a live run, from the compute times of its ranks in each round."""
    each = [{timing.rank: timing.compute_s for timing in timings} for timings in rounds]
    ranks = sorted({rank for compute_s in each for rank in compute_s})
    places = {rank: (place.stage, place.pipeline) for rank, place in places_of(groups, ranks).items()}
    table = {rank: {number: of[rank] for number, of in enumerate(each) if rank in of} for rank in ranks}
    found = weigh(Table(compute_s=table, places=places, unit="round"))
    if found.workers is None or whole_pipeline(found.workers.ranks, groups) is None:
        return found
    # From arrivals, all stages of a pipeline look as long as its slowest stage.
    one = msgspec.structs.replace(found.workers, sentence=f"one of {found.workers.sentence}")
    return msgspec.structs.replace(found, workers=one)


def _steps(table: Table) -> list[int]:
    return sorted({step for mine in table.compute_s.values() for step in mine})


def _workers(by_step: Mapping[int, Mapping[int, float]], places: Places, unit: str) -> Share | None:
    """Ranks that take longer than their place in nearly all steps."""
    each: defaultdict[int, list[float]] = defaultdict(list)
    flat = places or {rank: Place(0, rank) for rank in next(iter(by_step.values()))}
    together = bool(places) and rise_together(list(by_step.values()), places)
    for compute_s in by_step.values():
        for rank, share in ratios(compute_s, flat, together=together).items():
            each[rank].append(share)
    if not each:
        return None
    total = {rank: statistics.fmean(mine[rank] for mine in by_step.values()) for rank in flat}
    overall = ratios(total, flat, together=together)
    middle = statistics.median(overall.values())
    spread = 1.4826 * statistics.median(abs(share - middle) for share in overall.values())
    least = max(MIN_WORKER, MIN_SPREADS * spread)
    named = sorted(
        (
            rank
            for rank, share in overall.items()
            if share - middle >= least and _quantile(each[rank], LOW) - 1 >= MIN_WORKER / 2
        ),
        key=lambda rank: -overall[rank],
    )
    if not named or 2 * len(named) > len(overall):
        return None
    worst = named[0]
    others = statistics.median(total[rank] for rank in peers_of(worst, places, list(total)) if rank not in named)
    whom = f"the other ranks of stage {places[worst].stage}" if places else "the other ranks"
    sentence = (
        f"{ranks_text(named)}: computes {overall[worst] - 1:.0%} longer than {whom} in nearly every {unit} "
        f"({per_step(total[worst])} against {per_step(others)})"
    )
    return Share(code="ES-S01", sentence=sentence, share=overall[worst] - 1, ranks=tuple(named))


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


def _stage(by_step: Mapping[int, Mapping[int, float]], places: Places, slow: set[int]) -> Share | None:
    """The excess of the longest stage over the mean of all stages, at the median of its replicas."""
    of_stage: defaultdict[int, list[float]] = defaultdict(list)
    for compute_s in by_step.values():
        for rank, value in compute_s.items():
            if places and rank not in slow:
                of_stage[places[rank].stage].append(value)
    if len(of_stage) < 2:
        return None
    usual = {stage: statistics.median(values) for stage, values in of_stage.items()}
    longest = max(usual, key=lambda stage: usual[stage])
    share = usual[longest] / statistics.fmean(usual.values()) - 1
    if share < MIN_SHARE:
        return None
    sentence = (
        f"stage {longest} of {len(usual)} computes {per_step(usual[longest])} per step in the middle of its replicas, "
        f"{share:.0%} more than the mean of all stages: the model is cut unevenly"
    )
    return Share(code="ES-S05", sentence=sentence, share=share)


def _work(by_step: Mapping[int, Mapping[int, float]], places: Places, slow: set[int], unit: str) -> Share | None:
    """The excess of the longest replica of a step over the usual time, if that replica changes from step to step."""
    usual: defaultdict[int, list[float]] = defaultdict(list)
    for compute_s in by_step.values():
        for rank, value in compute_s.items():
            usual[rank].append(value)
    base = {rank: statistics.median(values) for rank, values in usual.items()}
    longest: list[float] = []
    who: list[int] = []
    for compute_s in by_step.values():
        of_pipeline: defaultdict[int, list[float]] = defaultdict(list)
        for rank, value in compute_s.items():
            if rank not in slow and base[rank] > 0:
                of_pipeline[places[rank].pipeline if places else rank].append(value / base[rank])
        # Take the smallest growth of its stages: more work makes all of them rise together.
        risen = {pipeline: min(values) for pipeline, values in of_pipeline.items()}
        middle = statistics.median(risen.values()) if risen else 0.0
        if middle > 0:
            first = max(risen, key=lambda pipeline: risen[pipeline])
            longest.append(risen[first] / middle - 1)
            who.append(first)
    share = statistics.median(longest) if longest else 0.0
    if share < MIN_SHARE or len(set(who)) < 2:
        return None
    sentence = (
        f"the longest {'pipeline' if places else 'rank'} of a {unit} takes {share:.0%} more than the middle one, "
        f"and changes from {unit} to {unit} ({len(set(who))} in {len(who)} {unit}s): sequences differ in length"
    )
    return Share(code="ES-S04", sentence=sentence, share=share)
