"""How long a job that stands still is left alone: the price of a mistake, what was learnt, and never past the limit."""

import msgspec
import pytest

from everstep.core.run.standstill import AGAIN, LIMIT_SLACK_S, key_of, patience
from everstep.core.state.policy import Policy
from everstep.core.state.schema import Place
from everstep.model.verdict import Blame, Certainty, Confidence, Verdict

DOUBT = Verdict(
    code="ES-H02",
    sentence="rank 0 never entered.",
    blame=Blame.UNKNOWN,
    confidence=Confidence.MEDIUM,
    at=0.0,
    place="train.py:88 upload",
    certainty=Certainty.DOUBTFUL,
)
SURE = msgspec.structs.replace(DOUBT, certainty=Certainty.CERTAIN)


def given(verdict: Verdict, *, known: Place | None = None, policy: Policy | None = None, **how) -> float | None:
    usual = {"step": 5, "has_way_back": True, "window_s": 2.0, "limit_s": 600.0}
    found = patience(verdict, known=known or Place(), policy=policy or Policy(), **{**usual, **how})
    assert found.why
    return found.act_after_s


@pytest.mark.parametrize("has_way_back", [True, False])
def test_certain_is_now(has_way_back):
    assert given(SURE, has_way_back=has_way_back) == 0.0


def test_doubt_has_the_price_of_the_mistake():
    works = msgspec.structs.replace(DOUBT, computes=True)
    assert (given(DOUBT), given(works)) == (30.0, 60.0)
    assert given(DOUBT, has_way_back=False) == given(works, has_way_back=False) == 600.0 + LIMIT_SLACK_S
    assert given(DOUBT, has_way_back=False, limit_s=None) == 1800.0 + LIMIT_SLACK_S
    assert given(DOUBT, has_way_back=False, policy=Policy(hang_plain_s=90.0)) == 90.0


def test_nothing_is_shorter_than_what_is_usual_here():
    assert given(DOUBT, window_s=300.0) == 300.0
    assert given(DOUBT, known=Place(longest_s=100.0)) == 200.0


@pytest.mark.parametrize("limit_s", [45.0, 600.0])
def test_nothing_is_longer_than_torch_itself_waits(limit_s):
    latest = limit_s + LIMIT_SLACK_S
    assert given(DOUBT, known=Place(longest_s=1e6), limit_s=limit_s) == latest
    assert given(DOUBT, window_s=1e6, limit_s=limit_s) == latest


def test_repetition_teaches_and_from_the_third_time_on_it_is_only_reported():
    assert given(DOUBT, known=Place(times=1)) == 30.0 * AGAIN
    assert given(DOUBT, known=Place(times=2)) == 600.0 + LIMIT_SLACK_S
    assert given(SURE, known=Place(times=1, step=5)) == 0.0
    assert given(SURE, known=Place(times=2, step=5)) == 600.0 + LIMIT_SLACK_S
    assert given(SURE, known=Place(times=2, step=4)) == 0.0, "it made progress"
    stopped = msgspec.structs.replace(SURE, code="ES-H01")
    assert given(stopped, known=Place(times=9, step=5)) == 0.0, "somebody outside stops it"


def test_a_place_is_the_class_and_the_line():
    assert key_of(DOUBT) != key_of(SURE)
    assert key_of(DOUBT) == key_of(msgspec.structs.replace(DOUBT, code="ES-H07"))
    unstated = msgspec.structs.replace(DOUBT, certainty=Certainty.UNSTATED)
    assert key_of(unstated) == key_of(DOUBT), "not stated is doubtful"
    assert given(unstated) == 30.0
