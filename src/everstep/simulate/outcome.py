"""From simulated runs to what people ask of them: ETTR and its spread, where the time went, what would help, which
step of the flow cured what. Pure."""

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from everstep.goodput.buckets import Bucket

STEPS = {
    "evict": "real-time eviction",
    "drain": "real-time eviction",
    "replace-lost-node": "real-time eviction",
    "evict-group": "eviction of a group",
    "evicted-by-checks": "stop-time checks",
    "evicted-by-replay": "dual-phase replay",
    "go-back": "going back to a trusted step",
    "restart-in-place": "reattempt",
    "read-again": "reattempt",
    "restore-another": "reattempt",
    "reattempt": "reattempt",
    "roll-back": "rollback",
    "merge-update": "update in place",
    "explain-only": "left alone",
    "gave-up": "people",
    "stopped": "people",
}
"""Rule that decided -> step of the flow, as docs/simulate.md calls it."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Seconds are of wall time: all ranks move together."""

    seed: int
    wall_s: float
    ettr: float
    seconds: dict[str, float]  # by part, together the wall time; see PARTS
    num_faults: int
    num_incidents: int
    num_starts: int
    num_evictions: int
    num_resubmits: int
    num_events: int
    solved_by: dict[str, int]  # step of the flow -> faults; "not over": the run ended first
    by_cause: dict[str, tuple[int, float]]  # cause -> faults, seconds that they cost


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    p5: float
    median: float
    p95: float


class Lever(msgspec.Struct, frozen=True, kw_only=True):
    """One cost: what it takes of the time, and what halving it would give. To first order: faults that come while
    another one is being handled are not counted twice."""

    part: str
    share: float  # of the wall time
    gain: float  # in ETTR, if it were halved
    mean_s: float  # per incident
    allowed_s: float | None  # per incident, for the target, all else as it is; None: the target is out of its reach


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    num_runs: int
    ettr: Spread
    num_faults: float  # means over the runs
    num_incidents: float
    num_starts: float
    num_evictions: float
    num_resubmits: float
    shares: dict[str, float]  # part -> share of the wall time
    levers: tuple[Lever, ...]
    solved_by: dict[str, float]  # step of the flow -> share of faults
    by_cause: dict[str, tuple[float, float]]  # cause -> faults of a run, share of the wall time
    target: float


PRODUCTIVE = "steps that were kept"
PARTS = {
    "detecting": Bucket.DETECT,
    "diagnosing": Bucket.DIAGNOSE,
    "starting": Bucket.INITIALISE,
    "restoring": Bucket.RESTORE,
    "steps done again": Bucket.REDONE,
    "stalls of saves": Bucket.CHECKPOINT_STALL,
}
"""Buckets of docs/goodput.md that are parts as they are; `schedule` is split into four."""

STOPPING, EXAMINING, WAITING, RESUBMITTING = (
    "stopping and evicting",
    "stop-time checks",
    "waiting for a machine",
    "resubmitting after giving up",
)


def summarise(outcomes: Sequence[Outcome], target: float) -> Summary:
    """Raises ValueError without any."""
    if not outcomes:
        raise ValueError("no run to summarise")
    ettrs = sorted(each.ettr for each in outcomes)
    wall_s = math.fsum(each.wall_s for each in outcomes)
    seconds = {part: math.fsum(each.seconds[part] for each in outcomes) for part in outcomes[0].seconds}
    num_incidents = sum(each.num_incidents for each in outcomes)
    mean = math.fsum(ettrs) / len(ettrs)
    solved: Counter[str] = Counter()
    for each in outcomes:
        solved.update(each.solved_by)
    return Summary(
        num_runs=len(outcomes),
        ettr=Spread(p5=quantile(ettrs, 0.05), median=quantile(ettrs, 0.5), p95=quantile(ettrs, 0.95)),
        num_faults=sum(each.num_faults for each in outcomes) / len(outcomes),
        num_incidents=num_incidents / len(outcomes),
        num_starts=sum(each.num_starts for each in outcomes) / len(outcomes),
        num_evictions=sum(each.num_evictions for each in outcomes) / len(outcomes),
        num_resubmits=sum(each.num_resubmits for each in outcomes) / len(outcomes),
        shares={part: total / wall_s for part, total in seconds.items()},
        levers=_levers(seconds, wall_s, num_incidents, mean, target),
        solved_by={step: number / max(1, solved.total()) for step, number in solved.most_common()},
        by_cause=_by_cause(outcomes, wall_s),
        target=target,
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Between the two nearest values."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _levers(
    seconds: dict[str, float], wall_s: float, num_incidents: int, ettr: float, target: float
) -> tuple[Lever, ...]:
    spare_s = (ettr - target) * wall_s
    levers = [
        Lever(
            part=part,
            share=total / wall_s,
            gain=total / 2 / wall_s,
            mean_s=total / max(1, num_incidents),
            allowed_s=(total + spare_s) / max(1, num_incidents) if total + spare_s >= 0 else None,
        )
        for part, total in seconds.items()
        if part != PRODUCTIVE
    ]
    return tuple(sorted(levers, key=lambda lever: -lever.gain))


def _by_cause(outcomes: Sequence[Outcome], wall_s: float) -> dict[str, tuple[float, float]]:
    numbers: Counter[str] = Counter()
    costs: Counter[str] = Counter()
    for each in outcomes:
        for name, (number, cost_s) in each.by_cause.items():
            numbers[name] += number
            costs[name] += cost_s  # type: ignore[assignment]  # seconds
    order = sorted(numbers, key=lambda name: -costs[name])
    return {name: (numbers[name] / len(outcomes), costs[name] / wall_s) for name in order}
