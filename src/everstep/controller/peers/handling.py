"""How long reports wait until they are settled: from their arrival to their acknowledgement, over the newest ones."""

import math
from collections import deque

import msgspec

NUM_KEPT = 20_000
"""More than a second of reports of 12,500 agents; a longer memory would hide a bad second among good ones."""


class Handled(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. None: nothing was handled yet."""

    median_s: float | None
    p99_s: float | None
    worst_s: float | None = None
    num: int  # that these figures are of


class Handling:
    def __init__(self, num_kept: int = NUM_KEPT) -> None:
        self._newest: deque[float] = deque(maxlen=num_kept)

    def note(self, took_s: float) -> None:
        self._newest.append(took_s)

    def figures(self) -> Handled:
        took = sorted(self._newest)
        if not took:
            return Handled(median_s=None, p99_s=None, num=0)
        p99 = took[math.ceil(0.99 * len(took)) - 1]
        return Handled(median_s=took[len(took) // 2], p99_s=p99, worst_s=took[-1], num=len(took))
