"""Dual-phase replay: the paper's figure, the groups, the numbers."""

import pytest

from everstep.analyzer.slowness import replay
from everstep.analyzer.slowness.replay import Layout

FIGURE = Layout(num_machines=24, size=4, num_groups=6, factor=1)


def test_machine_13_of_the_papers_figure() -> None:
    assert FIGURE.horizontal()[3] == (12, 13, 14, 15)
    assert FIGURE.vertical()[1] == (1, 7, 13, 19)
    found = replay.solve(FIGURE, [i == 3 for i in range(6)], [i == 1 for i in range(6)])
    assert (found.kind, found.candidates) == ("one", (13,))
    assert set(found.clean) == set(range(24)) - {12, 13, 14, 15} - {1, 7, 19}


@pytest.mark.parametrize(
    ("machines", "pipeline", "size", "num_groups"),
    [
        (24, 4, 4, 6),
        (24, 1, 4, 6),
        (16, 2, 4, 4),
        (9, 1, 3, 3),
        (6, 1, 2, 3),
        (4, 1, 1, 4),
        (3, 1, 1, 3),
        (1200, 8, 24, 50),
    ],
)
def test_the_largest_groups_with_one_answer(machines: int, pipeline: int, size: int, num_groups: int) -> None:
    groups = replay.layout(machines, pipeline)
    assert isinstance(groups, Layout)
    assert (groups.size, groups.num_groups, groups.factor) == (size, num_groups, size // pipeline)


@pytest.mark.parametrize(("machines", "pipeline"), [(2, 1), (1, 1), (8, 4), (7, 2), (12, 6)])
def test_no_groups_without_one_answer(machines: int, pipeline: int) -> None:
    why = replay.layout(machines, pipeline)
    assert isinstance(why, str)
    assert str(machines) in why


def test_larger_groups_than_there_are_would_leave_more_than_one_candidate() -> None:
    wide = Layout(num_machines=24, size=6, num_groups=4, factor=1)
    ambiguous = [x for x in range(24) if len(set(wide.horizontal()[x // 6]) & set(wide.vertical()[x % 4])) > 1]
    assert ambiguous, "m <= n is what makes the answer unique"


def test_rounds_for_a_stated_confidence() -> None:
    assert replay.rounds_for(1.0, 0.95) == 1
    num_rounds = replay.rounds_for(0.3, 0.95)
    assert num_rounds == 12
    assert (1 - replay.missed(0.3, num_rounds)) ** 3 >= 0.95 > (1 - replay.missed(0.3, num_rounds - 1)) ** 3
    with pytest.raises(ValueError, match="detection 0"):
        replay.rounds_for(0.0, 0.95)


def test_nothing_seen_is_a_bound_and_not_a_clean_bill() -> None:
    assert replay.none_text(0.3, 12) == (
        "nothing differed in 12 replays: a machine that computes wrongly in 30% of them or more passes all with a "
        "probability of at most 1.4%"
    )


def test_an_answer_that_is_missing_clears_nobody() -> None:
    found = replay.solve(FIGURE, [i == 3 for i in range(6)], [None] * 6)
    assert (found.kind, found.candidates, found.clean) == ("several", (12, 13, 14, 15), ())
    assert replay.solve(FIGURE, [None] * 6, [None] * 6).kind == "none"
    assert isinstance(replay.confirmations(FIGURE, (12,), ()), str)


def test_digests_need_a_majority() -> None:
    assert replay.odd_digests(["a", "a", "b"]) == (False, False, True)
    assert replay.odd_digests(["a", "", "a", "b"]) == (False, None, False, True)
    assert replay.odd_digests(["a", "b"]) == (None, None)
    assert replay.odd_digests(["a", "a", "b", "b"]) == (None,) * 4
    assert replay.odd_digests(["a", "", ""]) == (None,) * 3
    assert replay.odd_digests([]) == ()
    mixed = ["k:a", "k:a", "k:b", "l:c", "l:c", "l:c", "m:d"]  # three kinds of processors, one of them alone
    assert replay.odd_digests(mixed) == (False, False, True, False, False, False, None)
