"""bench/launchers.py: which differences it lets pass."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from launchers import AGENT_STORE, differences


@pytest.mark.parametrize(
    ("theirs", "ours", "num_meant", "num_others"),
    [
        ({"a": 1}, {"a": 1}, 0, 0),
        ({"a": 1}, {"a": 2}, 0, 1),
        ({"a": 1}, {}, 0, 1),
        ({}, {"env.RANK": "0"}, 0, 1),
        ({}, {"env.EVERSTEP_SLOT": "0", "env.TORCH_FR_BUFFER_SIZE": "512"}, 0, 0),
        ({}, {AGENT_STORE: "True"}, 1, 0),
        ({AGENT_STORE: "True"}, {}, 0, 1),
    ],
)
def test_only_what_is_meant_may_differ(theirs, ours, num_meant, num_others):
    meant, others = differences({"0": theirs}, {"0": ours})
    assert (len(meant), len(others)) == (num_meant, num_others)


def test_a_rank_that_is_missing_differs_in_all_facts():
    assert len(differences({"0": {"a": 1}, "1": {"a": 1, "b": 2}}, {"0": {"a": 1}})[1]) == 2
