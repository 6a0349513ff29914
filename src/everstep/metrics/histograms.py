"""Histograms with fixed bounds, from what a view keeps. Pure."""

from collections.abc import Iterable

from everstep.journal.pace import Pace
from everstep.metrics.samples import Buckets

STEP_BOUNDS = tuple(mantissa * 10.0**power for power in range(-3, 3) for mantissa in (1.0, 1.5, 2.0, 3.0, 5.0, 7.0))
"""From a millisecond to twelve minutes; at most half as much again lies between two."""

PHASE_BOUNDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)


def buckets_of(values: Iterable[tuple[float, int]], bounds: tuple[float, ...]) -> Buckets | None:
    """`values`: each with how often. None: there is none."""
    counts, rest, total = [0] * len(bounds), 0, 0.0
    for value, number in values:
        total += value * number
        place = next((place for place, bound in enumerate(bounds) if value <= bound), None)
        if place is None:
            rest += number
        else:
            counts[place] += number
    seen, cumulative = 0, []
    for bound, number in zip(bounds, counts, strict=True):
        seen += number
        cumulative.append((bound, seen))
    if seen + rest == 0:
        return None
    return Buckets(counts=(*cumulative, (float("inf"), seen + rest)), total=total)


def step_buckets(pace: Pace) -> Buckets | None:
    return buckets_of(pace.totals(), STEP_BOUNDS)
