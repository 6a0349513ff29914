"""bench/measuring/figures.py: medians, ratios and tables of measurements, some of which never came."""

import math
import statistics
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from measuring.figures import NEVER, better, interval_of_median, quantile, ratio, seconds, spread, table

floats = st.floats(min_value=0, max_value=1e6)


def test_nothing_measured_is_none_and_not_zero():
    assert spread([]) is None
    assert quantile([], 0.95) is None
    assert interval_of_median([1.0, 2.0]) is None
    assert ratio(None, spread([1.0])) is None


def test_one_never_moves_the_median_and_a_majority_makes_it_never():
    one = spread([1.0, 2.0, NEVER])
    most = spread([1.0, NEVER, NEVER])
    half = spread([1.0, NEVER])
    assert one is not None
    assert (one.median, one.num_never, one.most) == (2.0, 1, NEVER)
    assert most is not None
    assert most.median == NEVER
    assert half is not None
    assert half.median == NEVER


def test_ratio_of_never_is_not_a_number():
    assert ratio(spread([1.0]), spread([NEVER])) is None
    assert ratio(spread([NEVER]), spread([1.0])) is None
    assert ratio(spread([0.5]), spread([5.0])) == pytest.approx(0.1)


def test_better_prefers_the_lower_median_and_ignores_the_unmeasured():
    assert better({"a": spread([NEVER]), "b": spread([9.0]), "c": None}) == "b"
    assert better({"a": None}) is None


@given(st.lists(floats, min_size=1), st.floats(min_value=0.01, max_value=1))
def test_a_quantile_is_a_value_with_enough_values_below_it(values: list[float], share: float):
    found = quantile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9


@given(st.lists(floats, min_size=3, max_size=30))
def test_the_interval_lies_within_the_values_and_is_the_same_every_time(values: list[float]):
    interval = interval_of_median(values, resamples=100)
    assert interval is not None
    low, high = interval
    assert min(values) <= low <= high <= max(values)
    assert interval == interval_of_median(values, resamples=100)


def test_the_interval_covers_the_median_of_a_wide_sample():
    values = [float(value) for value in range(101)]
    interval = interval_of_median(values)
    assert interval is not None
    assert interval[0] < statistics.median(values) < interval[1]


def test_seconds_are_read_by_people():
    assert [seconds(value) for value in (None, NEVER, 0.4567, 7.0, 12.345, 123.4)] == [
        "—",
        "never",
        "0.457 s",
        "7.00 s",
        "12.3 s",
        "123 s",
    ]
    assert math.isinf(NEVER)


def test_table_aligns_names_left_and_figures_right():
    text = table(("launcher", "median"), [("torchrun", "5.39 s"), ("e", "never")])
    assert text.splitlines() == [
        "launcher  median",
        "────────────────",
        "torchrun  5.39 s",
        "e          never",
    ]
