"""Ranges of ranks behave as one entry for each rank would."""

import time

from hypothesis import given
from hypothesis import strategies as st

from everstep.journal.rank_nodes import RankNodes

PLACED = st.tuples(st.integers(0, 30), st.integers(0, 12), st.sampled_from("abc"))


@given(st.lists(PLACED, max_size=12))
def test_ranges_are_what_a_dict_is(placed):
    found, expected = RankNodes(), {}
    for first, num_ranks, node in placed:
        found.place(first, num_ranks, node)
        expected |= dict.fromkeys(range(first, first + num_ranks), node)
        assert (dict(found), len(found)) == (expected, len(expected))
        assert list(found) == sorted(expected)
        assert all(found.get(rank) == expected.get(rank) for rank in range(-1, 45))
        assert RankNodes(expected) == found


def test_a_thousand_generations_of_a_million_ranks_cost_nothing():
    began = time.process_time()
    kept = []
    for number in range(1000):
        kept.append(RankNodes())
        for node in range(8):
            kept[-1].place(node << 17, 1 << 17, f"n{node}-{number}")
    assert {len(each) for each in kept} == {1 << 20}
    assert kept[-1][(1 << 20) - 1] == "n7-999"
    assert time.process_time() - began < 5
