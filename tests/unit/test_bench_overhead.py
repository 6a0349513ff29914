"""bench/slices.py: whose turn it is, which steps count, and the paired cost of a step."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
from slices import Slice, cost, step_s, turns


def within(began: float, ended: float) -> Slice:
    return Slice(contender="a", round=0, began=began, ended=ended)


def test_only_steps_that_began_and_ended_in_the_slice_count():
    # The step from 1 to 90 was interrupted by other turns.
    times = [0.0, 1.0, 90.0, 91.0, 92.5, 93.5, 200.0]
    assert step_s(times, within(89, 95)) == pytest.approx(1.0)


def test_a_slice_with_too_few_steps_was_not_measured():
    assert step_s([1.0, 2.0, 3.0], within(0, 10)) is None
    assert step_s([], within(0, 10)) is None


def test_drift_of_the_machine_cancels_in_pairs():
    drift = [1.0, 2.0, 4.0, 8.0]
    found = cost([base * 1.01 for base in drift], drift)
    assert found is not None
    assert found.share == pytest.approx(0.01)
    assert (found.low, found.high) == (pytest.approx(0.01), pytest.approx(0.01))


def test_rounds_without_a_partner_are_left_out():
    found = cost([1.1, None, 1.1], [1.0, 1.0, None])
    assert found is not None
    assert found.num_rounds == 1
    assert found.low is None
    assert cost([None], [1.0]) is None


@given(st.integers(min_value=0, max_value=50))
def test_every_training_has_one_turn_in_every_round(round_: int):
    assert sorted(turns(["a", "b", "c"], round_)) == ["a", "b", "c"]


def test_nobody_is_always_first():
    firsts = [turns(["a", "b", "c"], round_)[0] for round_ in range(6)]
    assert sorted(firsts) == ["a", "a", "b", "b", "c", "c"]
