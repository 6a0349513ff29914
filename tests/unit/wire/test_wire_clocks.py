"""A clock is wrong when that is certain: what the other told between our question and our look at its answer."""

import pytest

from everstep.wire.clocks import ahead_s


@pytest.mark.parametrize(
    ("theirs", "asked", "answered", "expected"),
    [
        (100.0, 99.9, 100.1, 0.0),
        (3700.0, 99.9, 100.1, 3599.9),
        (-3500.0, 99.9, 100.1, -3599.9),
        (90.5, 90.0, 100.0, 0.0),  # we looked ten seconds later, with thousands before it
        (103.0, 90.0, 100.0, 3.0),
        (101.0, 90.0, 100.0, 0.0),  # within what a greeting takes
        (None, 90.0, 100.0, 0.0),
        (500.0, 100.0, 90.0, 0.0),  # our own clock was set meanwhile: nothing is known
    ],
)
def test_our_own_lateness_is_no_wrong_clock(theirs, asked, answered, expected):
    assert ahead_s(theirs, asked, answered) == pytest.approx(expected)
