"""The loss over a whole run in bounded memory, and which of it was trained again after a fault.

Noted by `fold` from `LossNoted`; read by `report.picture`.
"""

from collections.abc import Iterable

import msgspec

from everstep.model.facts import LossPoint

MAX_POINTS = 1024


class LossAt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    point: LossPoint
    generation: int


class Losses(msgspec.Struct, kw_only=True):
    rank: int | None = None  # the rank that reported the newest
    num_noted: int = 0  # in all, whatever is kept
    points: list[LossAt] = []
    apart_s: float = 0.0  # what is kept lies so far apart, but for the newest and ends of generations

    def note(self, generation: int, rank: int, points: Iterable[LossPoint]) -> None:
        self.rank = rank
        for point in points:
            self.num_noted += 1
            self._add(LossAt(point=point, generation=generation))
            if len(self.points) > MAX_POINTS:
                self._thin()

    def is_redone(self, began: dict[int, int]) -> list[bool]:
        """For each point: whether a later generation trained its step again. `began`: generation -> the first step that
        it trained, where that is known; else its first point counts."""
        first: dict[int, int] = {}
        for each in reversed(self.points):
            if each.point.step is not None:
                first[each.generation] = each.point.step
        first |= began
        least: int | None = None
        again: dict[int, int | None] = {}
        for number in sorted(first, reverse=True):
            again[number] = least
            least = first[number] if least is None else min(least, first[number])
        return [_reaches(each.point.step, again.get(each.generation)) for each in self.points]

    def _add(self, each: LossAt, *, by_generation: bool = True) -> None:
        """The newest is always kept, and gives way to the next where it lies too near to the one before."""
        if len(self.points) > 1:
            before, last = self.points[-2:]
            is_near = 0.0 <= last.point.at - before.point.at < self.apart_s
            is_one = not by_generation or before.generation == last.generation == each.generation
            if is_near and is_one and last.point.loss is not None:
                self.points.pop()
        self.points.append(each)

    def _thin(self) -> None:
        span_s = max(each.point.at for each in self.points) - min(each.point.at for each in self.points)
        self.apart_s = max(2.0 * self.apart_s, span_s / (MAX_POINTS / 2))
        for by_generation in (True, False):
            points, self.points = self.points, []
            for each in points:
                self._add(each, by_generation=by_generation)
            if len(self.points) <= MAX_POINTS * 3 // 4:
                return
        self.points = self.points[-MAX_POINTS // 2 :]  # all at one moment, or none of them finite


def _reaches(step: int | None, least: int | None) -> bool:
    return step is not None and least is not None and step >= least
