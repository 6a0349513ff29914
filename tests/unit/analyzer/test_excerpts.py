"""Excerpts of public threads with a settled cause. Half of them may teach a signature; the other half is counted."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))

from built_in import BASE

from excerpts import excerpts, judge

ALL = excerpts()
READ = [excerpt for excerpt in ALL if excerpt.part == "read"]
KEPT = [excerpt for excerpt in ALL if excerpt.part == "kept"]


@pytest.mark.parametrize("excerpt", READ, ids=[excerpt.title for excerpt in READ])
def test_an_excerpt_gets_the_party_and_the_class_that_its_thread_settled_on(excerpt):
    judged = judge(excerpt, BASE)
    assert (judged.is_party, judged.is_class, judged.is_harmful) == (True, True, False), judged.says


def test_excerpts_that_nobody_has_read_stay_as_good_as_measured():
    """To be raised, never lowered; what differs stays unread."""
    judged = [judge(excerpt, BASE) for excerpt in KEPT]
    assert len(judged) == 40
    assert sum(one.is_found for one in judged) >= 37
    assert sum(one.is_party for one in judged) >= 32
    assert sum(one.is_class for one in judged) >= 34
    assert sum(one.is_harmful for one in judged) <= 3
