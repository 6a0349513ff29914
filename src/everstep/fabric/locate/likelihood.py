"""How likely losses are on paths on which a fault loses packets at one rate. Pure arithmetic.

Of a path over full links it is known only between which bounds their queues let packets pass. Whatever share between
them fits best is taken, so such a path says nothing where a queue explains what it lost. The logarithm stays concave in
the logarithm of 1 - rate: it has one top.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

_STEPS = 40


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
    low, high = 1e-6, 1.0 - 1e-6
    for _ in range(_STEPS):  # the derivative falls: find where it is 0
        middle = (low + high) / 2
        if sum(_slope(row, middle) for row in rows) > 0:
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


def _slope(row: Row, rate: float) -> float:
    share, passing = (row.sent - row.bad) / row.sent, 1.0 - rate
    if row.least * passing < share < row.most * passing:
        return 0.0
    bound = row.most if share >= row.most * passing else row.least
    return row.bad * bound / (1.0 - bound * passing) - (row.sent - row.bad) / passing
