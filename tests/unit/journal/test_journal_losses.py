"""The loss over a whole run: bounded, and what was trained again after a fault is told from what stayed."""

from itertools import pairwise

import msgspec
import pytest

from everstep.journal.losses import MAX_POINTS, Losses
from everstep.model.events import Event, LossNoted
from everstep.model.facts import LossPoint


def curve(*generations: list[int | None]) -> Losses:
    losses = Losses()
    for number, steps in enumerate(generations):
        losses.note(number, 0, [LossPoint(at=100.0 * number + k, step=s, loss=1.0) for k, s in enumerate(steps)])
    return losses


@pytest.mark.parametrize(
    ("generations", "began", "redone"),
    [
        ([[1, 2, 3]], {}, []),
        ([[1, 2, 3, 4], [3, 4, 5]], {}, [2, 3]),
        ([[1, 2, 3, 4], [4, 5]], {1: 2}, [1, 2, 3]),
        ([[1, 2, 3, 4], [5, 6]], {}, []),
        ([[5, 6, 7], [7, 8, 9], [6, 7]], {}, [1, 2, 3, 4, 5]),
        ([[None, None], [1, 2]], {}, []),
        ([[1, 2, 3], []], {1: 2}, [1, 2]),
    ],
)
def test_what_was_trained_again(generations, began, redone):
    told = curve(*generations).is_redone(began)
    assert [place for place, is_redone in enumerate(told) if is_redone] == redone


def test_it_is_bounded_and_keeps_what_was_not_finite():
    losses = Losses()
    for step in range(50_000):
        losses.note(0, 0, [LossPoint(at=float(step), step=step, loss=None if step == 12_345 else 1.0)])
        assert len(losses.points) <= MAX_POINTS
    steps = [each.point.step for each in losses.points]
    assert steps == sorted(steps)
    assert [each.point.step for each in losses.points if each.point.loss is None] == [12_345]
    assert steps[-1] == 49_999
    apart = [after - before for before, after in pairwise(steps)]
    assert max(apart) < 3 * 50_000 / MAX_POINTS, "evenly over the run, old or new"


def test_more_generations_than_points_are_bounded_too():
    losses = Losses()
    for number in range(2 * MAX_POINTS):
        losses.note(number, 0, [LossPoint(at=float(number), step=number, loss=1.0)])
        assert len(losses.points) <= MAX_POINTS
    assert losses.points[0].generation < 10
    assert losses.points[-1].generation == 2 * MAX_POINTS - 1


def test_a_point_is_short_on_record():
    event = LossNoted(at=1.0, generation=0, rank=0, points=(LossPoint(at=1.0, step=7, loss=None),))
    line = msgspec.json.encode(event)
    assert b'"points":[[1.0,7,null]]' in line
    assert msgspec.json.decode(line, type=Event) == event


@pytest.mark.parametrize("loss", [1.0, None])
def test_points_of_one_moment_are_bounded(loss):
    losses = Losses()
    losses.note(0, 0, [LossPoint(at=1.0, step=step, loss=loss) for step in range(4 * MAX_POINTS)])
    assert len(losses.points) <= MAX_POINTS
    assert losses.points[-1].point.step == 4 * MAX_POINTS - 1
