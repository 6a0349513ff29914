"""Likelihood of losses on the paths of a fault that loses packets at one rate. Pure arithmetic.

For a path over full links, only bounds on the share of packets that the queues let pass are known. The share within the
bounds that fits best is used, so such a path is no evidence if a queue explains its losses. The log likelihood stays
concave in log(1 - rate), so it has one maximum.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

_STEPS = 22
"""Bisection steps: they find the rate to less than one packet in a million."""


class Row(NamedTuple):
    """Packets of one path, and bounds on the probability that a packet arrives there if there is no fault. 0 < least <=
    most < 1, sent > 0."""

    sent: int
    bad: int
    least: float
    most: float

    def coming(self, rate: float) -> float:
        """The likeliest probability, within the bounds, that a packet arrives if the fault loses `rate`."""
        passing = 1.0 - rate
        return min(max((self.sent - self.bad) / self.sent, self.least * passing), self.most * passing)


def likeliest_rate(rows: Sequence[Row]) -> float:
    """The loss rate, from 0 to 1, that makes the observations most likely; the smallest if there are several."""
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
    """Log likelihood with a fault of this rate, minus that without a fault."""
    return sum(_log(row, rate) - _log(row, 0.0) for row in rows)


def _log(row: Row, rate: float) -> float:
    comes = row.coming(rate)
    return row.bad * math.log(1.0 - comes) + (row.sent - row.bad) * math.log(comes)


def _slope(rows: Sequence[tuple[int, int, float, float, float]], passing: float) -> float:
    """Derivative of the log likelihood. One loop, because a verdict spends most of its time here."""
    total = 0.0
    for bad, came, share, least, most in rows:
        if share >= most * passing:
            total += bad * most / (1.0 - most * passing) - came / passing
        elif share <= least * passing:
            total += bad * least / (1.0 - least * passing) - came / passing
    return total
