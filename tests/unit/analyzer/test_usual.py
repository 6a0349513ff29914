"""What is usual: robust against bursts and periods, and never made up from too little."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.analyzer.slowness.usual import MIN_VALUES, Histories, History, usual_of

SHARES = st.floats(0.0, 1.0)


@given(st.lists(SHARES, max_size=MIN_VALUES - 1))
def test_too_little_is_not_known(values: list[float]) -> None:
    assert usual_of(values) is None


@given(st.lists(SHARES, min_size=MIN_VALUES, max_size=60), st.randoms())
def test_what_is_usual_lies_within_and_has_no_order(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    usual = usual_of(values)
    assert usual == usual_of(shuffled)
    assert usual is not None
    assert min(values) <= usual.median <= max(values)
    assert usual.limit > usual.median


@given(st.lists(st.floats(0.0, 0.02), min_size=20, max_size=60), st.lists(st.floats(0.9, 1.0), max_size=9))
def test_less_than_half_of_outliers_move_nothing(values: list[float], outliers: list[float]) -> None:
    usual = usual_of([*values, *outliers])
    assert usual is not None
    assert usual.limit < 0.2


def test_a_period_is_usual_only_where_it_is_most_of_the_time() -> None:
    history = History()
    for window in range(60):
        history.note(10.0 * window, 0.3 if window % 10 == 9 else 0.01)
    assert history.since is not None, "a save of a tenth of the windows is unusual in its window"
    history.note(601.0, 0.01)
    assert history.since is None, "and over afterwards"


def test_since_when_it_is_unusual() -> None:
    told = Histories()
    for window in range(20):
        told.note(10.0 * window, {"fsync": 0.02}, ())
    words = {}
    for window in range(20, 26):
        words = told.note(10.0 * window, {"fsync": 0.4}, [{"fsync": 0.01}, {}])
    assert words == {"fsync": "usually 2%, its neighbours 0%, unusual for 50 s"}
    assert told.note(270.0, {}, ()) == {"fsync": "usually 2%"}


@given(st.lists(st.dictionaries(st.sampled_from("abc"), SHARES), max_size=120))
def test_memory_is_bounded_and_nothing_raises(windows: list[dict[str, float]]) -> None:
    told = Histories()
    for number, window in enumerate(windows):
        assert set(window) <= set(told.note(float(number), window, [window]))


def test_what_never_varied_needs_more_than_noise() -> None:
    usual = usual_of([0.1] * 20)
    assert usual is not None
    assert usual.limit == pytest.approx(0.15)
