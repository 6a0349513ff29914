"""Entries of a state as keywords, where names may collide."""

import pytest

from everstep.integrations.dcp import state_of


def test_two_names_that_become_one_keyword_are_refused():
    with pytest.raises(ValueError, match=r"'a\.b' and 'a_b' are both 'a_b'"):
        state_of({"a.b": 1, "a_b": 2})
    assert state_of({"a.b": 1, "c": 2}).step == -1
