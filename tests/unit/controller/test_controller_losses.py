"""Which losses go on record: often after a start, seldom later, of one rank, and never without the one that was NaN."""

import math

from one_node import running

from everstep.controller.detectors.losses import MAX_NOTED, LossNotes
from everstep.model.events import LossNoted
from everstep.model.facts import NumberPoint, RankNumbers
from everstep.model.observations import NumbersReported

STATE = running(4)


class Job:
    def __init__(self) -> None:
        self.notes = LossNotes()
        self.at, self.step = 1000.0, 0
        self.found: list[LossNoted] = []

    def say(self, *losses: float | None, rank: int = 0, generation: int = 0, after_s: float = 0.5) -> None:
        for loss in losses:
            self.at, self.step = self.at + after_s, self.step + 1
            points = (NumberPoint(step=self.step, loss=loss),)
            numbers = (RankNumbers(rank=rank, source="step", points=points),)
            event = NumbersReported(at=self.at, node="n0", generation=generation, numbers=numbers)
            self.found += self.notes.take(event, STATE)


def test_the_first_is_noted_at_once_and_later_ones_seldom():
    job = Job()
    job.say(2.5)
    assert [(each.rank, [p.loss for p in each.points]) for each in job.found] == [(0, [2.5])]
    job.say(*[2.0] * 7200)
    assert 70 < len(job.found) < 140, "an hour: dense at its beginning, then a record a minute"
    assert max(len(each.points) for each in job.found) <= MAX_NOTED
    assert job.found[-1].at - job.found[-2].at >= 60.0


def test_a_loss_that_was_not_finite_is_among_what_is_noted():
    job = Job()
    job.say(*[1.0] * 4000, math.nan, *[1.0] * 300)
    noted = [point for each in job.found for point in each.points]
    assert [point.step for point in noted if point.loss is None] == [4001]
    assert all(point.loss is None or math.isfinite(point.loss) for point in noted)


def test_the_lowest_rank_that_tells_a_loss_stands_for_all():
    job = Job()
    job.say(None, rank=0)
    job.say(3.0, rank=2)
    job.say(*[1.0] * 10, rank=1)
    job.say(*[3.0] * 10, rank=2)
    assert [each.rank for each in job.found][:1] == [2]
    assert {each.rank for each in job.found[1:]} == {1}


def test_what_was_not_noted_when_a_generation_ended_is_noted_with_the_next():
    job = Job()
    job.say(*[1.0] * 4000)
    before = job.found[-1].points[-1].step
    job.say(*[1.0] * 20)
    job.found.clear()
    job.say(0.9, generation=1)
    left, new = job.found
    assert (left.generation, new.generation) == (0, 1)
    assert left.points[0].step > before
    assert left.points[-1].step == 4020
    assert [point.loss for point in new.points] == [0.9]


def test_a_clock_that_is_set_back_does_not_silence_it():
    job = Job()
    job.say(*[1.0] * 100)
    known, job.at = len(job.found), 10.0
    job.say(1.0)
    assert len(job.found) == known + 1
