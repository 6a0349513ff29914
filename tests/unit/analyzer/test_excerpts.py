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
