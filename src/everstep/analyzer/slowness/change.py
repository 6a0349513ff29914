"""Finds a change of level in a series of step times: Pettitt's rank test, robust to outliers and to units.

A fixed factor would miss a job that slowly loses a tenth, and would report one long step. Pure; used by `slow`.
"""

import itertools
import math
import statistics
from collections.abc import Sequence

import msgspec

ALPHA = 1e-4
"""Probability of a false change per test of a series without one. With a test every ten seconds that is once a day; the
effect size below removes those too."""
MIN_SPREADS = 3.0
"""A change must exceed the usual scatter (median absolute difference of neighbours) this many times: steps of real jobs
are not independent, so the test alone reports too much."""
MIN_SHARE = 0.03
"""And it must be at least three percent of the step time."""
MIN_SIDE = 5
"""Steps on either side that make a level."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    index: int  # first value of the new level
    before: float  # medians
    after: float
    p: float

    @property
    def share(self) -> float:
        return self.after / self.before - 1 if self.before > 0 else math.inf


def find_change(values: Sequence[float]) -> Change | None:
    """The most likely change of level, or None. Returns None if a value is not finite."""
    n = len(values)
    if n < 2 * MIN_SIDE or not all(math.isfinite(value) for value in values):
        return None
    ranks = _ranks(values)
    total = 0.0
    best, index = 0.0, 0
    for t in range(1, n):
        total += ranks[t - 1]
        statistic = abs(2 * total - t * (n + 1))
        if statistic > best and MIN_SIDE <= t <= n - MIN_SIDE:
            best, index = statistic, t
    p = min(1.0, 2 * math.exp(-6 * best**2 / (n**3 + n**2)))
    if p > ALPHA or not index:
        return None
    before, after = statistics.median(values[:index]), statistics.median(values[index:])
    # Scatter from one step to the next: a slow growth is not scatter.
    spread = 1.4826 * statistics.median(abs(b - a) for a, b in itertools.pairwise(values)) / math.sqrt(2)
    moved = abs(after - before)
    if moved < MIN_SPREADS * spread or moved < MIN_SHARE * before:
        return None
    return Change(index=index, before=before, after=after, p=p)


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks of the values, from 1; ties share the mean."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in range(start, end + 1):
            ranks[order[place]] = (start + end) / 2 + 1
        start = end + 1
    return ranks
