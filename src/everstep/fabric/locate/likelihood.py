"""How likely losses are on paths on which a fault loses packets at one rate. Pure arithmetic.

Of a path over full links it is known only between which bounds their queues let packets pass. Whatever share between
them fits best is taken, so such a path says nothing where a queue explains what it lost. The logarithm stays concave in
the logarithm of 1 - rate: it has one top.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

_STEPS = 22
"""Each halves what the rate is known to: to less than one packet of a million."""


class Row(NamedTuple):
    """Packets of one path, and the probability that one comes without the fault: at least, at most.
    0 < least <= most < 1, sent > 0."""

    sent: int
    bad: int
    least: float
    most: float

    def coming(self, rate: float) -> float:
        """With a fault that loses `rate`: as what was seen makes it most likely."""
        passing = 1.0 - rate
        return min(max((self.sent - self.bad) / self.sent, self.least * passing), self.most * passing)


def likeliest_rate(rows: Sequence[Row]) -> float:
    """The smallest of those that make what was seen most likely."""
    known = [(row.bad, row.sent - row.bad, (row.sent - row.bad) / row.sent, row.least, row.most) for row in rows]
    low, high = 1e-6, 1.0 - 1e-6
    for _ in range(_STEPS):  # the derivative falls: find where it is 0
        middle = (low + high) / 2
        if _slope(known, 1.0 - middle) > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def gain_of(rows: Sequence[Row], rate: float) -> float:
    """Log likelihood with a fault of this rate, less that without."""
    return sum(_log(row, rate) - _log(row, 0.0) for row in rows)


def _log(row: Row, rate: float) -> float:
    comes = row.coming(rate)
    return row.bad * math.log(1.0 - comes) + (row.sent - row.bad) * math.log(comes)


def _slope(rows: Sequence[tuple[int, int, float, float, float]], passing: float) -> float:
    """In one loop: most of the time of a verdict is spent here."""
    total = 0.0
    for bad, came, share, least, most in rows:
        if share >= most * passing:
            total += bad * most / (1.0 - most * passing) - came / passing
        elif share <= least * passing:
            total += bad * least / (1.0 - least * passing) - came / passing
    return total
