"""The loss as people will see it: a few points of one rank's reports, noted often after a start and seldom later.

One rank stands for all, the lowest that reports a loss in this generation: ranks usually report the mean of all, and
where they do not, one line that is whole shows more than a mixture.
"""

import math

from everstep.core.state.schema import State
from everstep.model.events import LossNoted
from everstep.model.facts import LossPoint, RankNumbers
from everstep.model.observations import NumbersReported

SHORTEST_S = 2.0
LONGEST_S = 60.0
AGE_SHARE = 20.0
"""A generation that is 40 s old is noted every 2 s, one of 20 minutes and more once a minute."""

MAX_NOTED = 8
MAX_WAITING = 256


class LossNotes:
    def __init__(self) -> None:
        self._generation = -1
        self._rank: int | None = None
        self._waiting: list[LossPoint] = []
        self._begun_at = self._noted_at = float("-inf")

    def take(self, event: object, state: State) -> tuple[LossNoted, ...]:
        """Take one node's new points; returns those that go on record."""
        if not isinstance(event, NumbersReported):
            return ()
        left: tuple[LossNoted, ...] = ()
        if event.generation != self._generation:
            left = self._note(event.at)
            self._generation, self._rank, self._begun_at = event.generation, None, event.at
            self._noted_at = float("-inf")
        for told in sorted(event.numbers, key=lambda each: each.rank):
            self._hear(told, event.at)
        if not self._waiting or 0.0 <= event.at - self._noted_at < self._every_s(event.at):
            return left
        self._noted_at = event.at
        return (*left, *self._note(event.at))

    def _every_s(self, at: float) -> float:
        return min(LONGEST_S, max(SHORTEST_S, (at - self._begun_at) / AGE_SHARE))

    def _hear(self, told: RankNumbers, at: float) -> None:
        losses = [(point.step, point.loss) for point in told.points if point.loss is not None]
        if not losses or (self._rank is not None and told.rank > self._rank):
            return
        if told.rank != self._rank:
            self._rank = told.rank
            self._waiting.clear()
        step, loss = next((each for each in losses if not math.isfinite(each[1])), losses[-1])
        self._waiting.append(LossPoint(at=at, step=step, loss=loss if math.isfinite(loss) else None))
        if len(self._waiting) > MAX_WAITING:
            self._waiting = thinned(self._waiting)

    def _note(self, at: float) -> tuple[LossNoted, ...]:
        points, self._waiting = self._waiting, []
        if not points or self._rank is None:
            return ()
        while len(points) > MAX_NOTED:
            points = thinned(points)
        return (LossNoted(at=at, generation=self._generation, rank=self._rank, points=tuple(points)),)


def thinned(points: list[LossPoint]) -> list[LossPoint]:
    """Half of them: of each two the later one, unless the other was not finite."""
    first = len(points) % 2
    pairs = zip(points[first::2], points[first + 1 :: 2], strict=True)
    return points[:first] + [one if one.loss is None else other for one, other in pairs]
