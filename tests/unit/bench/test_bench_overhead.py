"""bench/measuring/slices.py: whose turn it is, which steps count, and the paired cost of a step."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from measuring.slices import Slice, cost, durations, turns, typical


def within(began: float, ended: float) -> Slice:
    return Slice(contender="a", round=0, began=began, ended=ended)


def wall(*times: float) -> list[tuple[float, float]]:
    return [(at, at) for at in times]


def test_only_steps_that_began_and_ended_in_the_slice_count():
    # The step from 1 to 90 was interrupted by other turns.
    found = durations(wall(0.0, 1.0, 90.0, 91.0, 92.5, 93.5, 200.0), within(89, 95))
    assert found == pytest.approx([1.0, 1.5, 1.0])
    assert durations([], within(0, 10)) == []


def test_another_clock_is_measured_in_the_same_steps():
    assert durations([(1.0, 10.0), (2.0, 10.25), (99.0, 50.0)], within(0, 5)) == [0.25]


def test_drift_of_the_machine_cancels_in_pairs():
    drift = [[1.0, 1.1], [2.0, 2.1], [4.0, 4.1], [8.0, 8.1]]
    found = cost([[step * 1.01 for step in steps] for steps in drift], drift)
    assert found is not None
    assert (found.share, found.low, found.high) == (pytest.approx(0.01), pytest.approx(0.01), pytest.approx(0.01))


def test_disturbed_steps_do_not_move_what_is_typical():
    quiet = [[1.0] * 8 for _ in range(10)]
    disturbed = [[1.0] * 5 + [3.0] * 3 for _ in range(10)]
    found = cost(disturbed, quiet)
    assert found is not None
    assert found.share == 0.0


def test_rounds_without_a_partner_are_left_out():
    found = cost([[1.1], [], [1.1]], [[1.0], [1.0], []])
    assert found is not None
    assert found.num_rounds == 1
    assert cost([[]], [[1.0]]) is None
    assert typical([[], []]) is None


@given(st.integers(min_value=0, max_value=50))
def test_every_training_has_one_turn_in_every_round(round_: int):
    assert sorted(turns(["a", "b", "c"], round_)) == ["a", "b", "c"]


def test_nobody_is_always_first():
    firsts = [turns(["a", "b", "c"], round_)[0] for round_ in range(6)]
    assert sorted(firsts) == ["a", "a", "b", "b", "c", "c"]
