"""From spans to the figures that people read: sums, goodput (ETTR), a sliding window, Baige's invalid time. Pure."""

import math
from collections.abc import Mapping

import msgspec

from everstep.goodput.account import account_rank
from everstep.goodput.buckets import Bucket
from everstep.goodput.history import EndKind, History
from everstep.goodput.timeline import Span

WINDOW_S = 3600.0
"""The sliding hour."""

_AFTER_A_FAULT = (Bucket.DETECT, Bucket.DIAGNOSE, Bucket.SCHEDULE, Bucket.INITIALISE, Bucket.RESTORE, Bucket.REDONE)


class InvalidTime(msgspec.Struct, frozen=True, kw_only=True):
    """Baige: invalid = interruptions x (detect + schedule + initialise + recompute) + checkpoint writes.

    Wall seconds, mean over ranks. The four are means per interruption, None without one.
    """

    num_interruptions: int
    detect_s: float | None  # with diagnosing
    schedule_s: float | None
    initialise_s: float | None  # with restoring
    recompute_s: float | None
    checkpoint_s: float
    invalid_s: float


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """`ettr` is productive / (wall x ranks); None where it is not known (`ratio_of`)."""

    wall_s: float
    num_ranks: int
    seconds: dict[Bucket, float]  # over all ranks, every bucket present
    ranks: tuple[dict[Bucket, float], ...]
    incidents: dict[str, dict[Bucket, float]]  # what each cost, over all ranks
    ettr: float | None
    window_s: float
    window_ettr: float | None
    invalid: InvalidTime

    def share(self, bucket: Bucket) -> float | None:
        whole = self.wall_s * self.num_ranks
        return self.seconds[bucket] / whole if whole > 0.0 else None


def goodput_of(history: History, window_s: float = WINDOW_S) -> Goodput:
    ranks = [account_rank(history, rank) for rank in range(history.world_size)]
    wall_s = max(0.0, history.until - history.begun_at)
    per_rank = tuple(sum_spans(spans) for spans in ranks)
    seconds = {bucket: math.fsum(rank[bucket] for rank in per_rank) for bucket in Bucket}
    window_s = min(window_s, wall_s)
    window = sum_spans([span for spans in ranks for span in spans], after_s=wall_s - window_s)
    incidents = _by_incident([span for spans in ranks for span in spans])
    return Goodput(
        wall_s=wall_s,
        num_ranks=history.world_size,
        seconds=seconds,
        ranks=per_rank,
        incidents=incidents,
        ettr=ratio_of(seconds, wall_s * history.world_size),
        window_s=window_s,
        window_ettr=ratio_of(window, window_s * history.world_size),
        invalid=_invalid_time(history, seconds, incidents),
    )


def ratios_of(history: History, windows_s: Mapping[str, float]) -> dict[str, float | None]:
    """ETTR of the newest part of a run, by name of the window; of all of it where it is younger."""
    spans = [span for rank in range(history.world_size) for span in account_rank(history, rank)]
    wall_s = max(0.0, history.until - history.begun_at)
    found: dict[str, float | None] = {}
    for name, wanted_s in windows_s.items():
        window_s = min(wanted_s, wall_s)
        seconds = sum_spans(spans, after_s=wall_s - window_s)
        found[name] = ratio_of(seconds, window_s * history.world_size)
    return found


def sum_spans(spans: list[Span], after_s: float = 0.0) -> dict[Bucket, float]:
    """Seconds per bucket of what lies after a time; shares are spread evenly over their span."""
    parts: dict[Bucket, list[float]] = {bucket: [] for bucket in Bucket}
    for span in spans:
        length_s = span.end_s - max(span.begin_s, after_s)
        if length_s > 0.0:
            for bucket, share in span.shares:
                parts[bucket].append(length_s * share)
    return {bucket: math.fsum(seconds) for bucket, seconds in parts.items()}


def _by_incident(spans: list[Span]) -> dict[str, dict[Bucket, float]]:
    by_incident: dict[str, list[Span]] = {}
    for span in spans:
        if span.incident is not None:
            by_incident.setdefault(span.incident, []).append(span)
    return {
        incident: {bucket: s for bucket, s in sum_spans(own).items() if bucket in _AFTER_A_FAULT and s > 0.0}
        for incident, own in by_incident.items()
    }


def _invalid_time(
    history: History, seconds: dict[Bucket, float], incidents: dict[str, dict[Bucket, float]]
) -> InvalidTime:
    num_ranks = max(1, history.world_size)
    endings = [g.ending for g in history.generations if g.ending is not None]
    number = sum(ending.kind is EndKind.FAULT for ending in endings)

    def cost_s(*buckets: Bucket) -> float:
        return math.fsum(cost.get(bucket, 0.0) for cost in incidents.values() for bucket in buckets) / num_ranks

    detect_s = cost_s(Bucket.DETECT, Bucket.DIAGNOSE)
    schedule_s = cost_s(Bucket.SCHEDULE)
    initialise_s = cost_s(Bucket.INITIALISE, Bucket.RESTORE)
    recompute_s = cost_s(Bucket.REDONE)
    checkpoint_s = seconds[Bucket.CHECKPOINT_STALL] / num_ranks
    return InvalidTime(
        num_interruptions=number,
        detect_s=detect_s / number if number else None,
        schedule_s=schedule_s / number if number else None,
        initialise_s=initialise_s / number if number else None,
        recompute_s=recompute_s / number if number else None,
        checkpoint_s=checkpoint_s,
        invalid_s=math.fsum((detect_s, schedule_s, initialise_s, recompute_s, checkpoint_s)),
    )


def ratio_of(seconds: Mapping[Bucket, float], whole_s: float) -> float | None:
    """Productive of all. None for no time at all, and where what may have been productive was not measured and nothing
    else was: a program that reports no steps has an unknown goodput, and not none."""
    productive_s, unknown_s = seconds[Bucket.PRODUCTIVE], seconds[Bucket.NOT_MEASURED]
    if whole_s <= 0.0 or (productive_s == 0.0 and unknown_s > 0.0):
        return None
    return productive_s / whole_s
