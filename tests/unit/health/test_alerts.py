"""What nodes noticed, and what a rank's own words mean, in the verdict on a fault."""

import pytest

from everstep.agent.processes.error_reports import explain_end
from everstep.analyzer.exits import FaultFacts, LostNode, judge
from everstep.analyzer.numbers.alerts import AFTER_S, BEFORE_S, SeenAlert
from everstep.analyzer.rank_exit import looks_like_consequence
from everstep.knowledge.signature import Action
from everstep.model.facts import Alert, ErrorReport, Exit, OomEvidence
from everstep.model.verdict import Blame
from everstep.report.parts.actions import ACTIONS

NODES = {0: "n0", 1: "n1"}


def alert(code: str = "ES-G79", at: float = 100.0, **changes: object) -> Alert:
    fields = {
        "at": at,
        "code": code,
        "sentence": "GPU fell off the bus",
        "component": "gpu",
        "blame": "machine",
        "severity": "fault",
        "action": "REPLACE_NODE",
        "device": "gpu 3",
        **changes,
    }
    return Alert(**fields)


def facts(*exits: Exit, alerts: tuple[SeenAlert, ...] = (), **changes: object) -> FaultFacts:
    return FaultFacts(at=100.0, exits=exits, alerts=alerts, nodes=NODES, **changes)


def on(node: str, **changes: object) -> SeenAlert:
    return SeenAlert(node=node, alert=alert(**changes))


def test_an_alert_of_the_ranks_node_is_the_cause():
    verdict = judge(facts(Exit(rank=1, at=101.0, signal=6), alerts=(on("n1"),)))
    assert (verdict.code, verdict.blame, verdict.node, verdict.ranks) == ("ES-G79", Blame.MACHINE, "n1", (1,))
    assert "GPU fell off the bus on gpu 3; rank 1 was killed by SIGABRT" in verdict.sentence
    assert verdict.action == "REPLACE_NODE"


@pytest.mark.parametrize(
    "seen",
    [
        on("n0"),
        on("n1", at=101.0 - BEFORE_S - 1),
        on("n1", at=101.0 + AFTER_S + 1),
        on("n1", severity="info"),
        on("n1", role="cascade"),
    ],
)
def test_what_came_elsewhere_or_at_another_time_or_is_no_cause_explains_nothing(seen):
    assert judge(facts(Exit(rank=1, at=101.0, signal=6), alerts=(seen,))).code == "ES-P02"


def test_a_program_that_raised_is_believed_before_the_node():
    error = ErrorReport(kind="KeyError", message="'labels'", place="train.py:3", at=101.0)
    assert judge(facts(Exit(rank=1, at=101.0, code=1, error=error), alerts=(on("n1"),))).code == "ES-U01"


def test_lack_of_memory_is_believed_before_the_node():
    oom = OomEvidence(source="cgroup oom_kill 0 -> 1")
    assert judge(facts(Exit(rank=1, at=101.0, signal=9, oom=oom), alerts=(on("n1"),))).code == "ES-P03"


def test_ranks_that_only_lost_their_peers_are_explained_by_any_node():
    error = ErrorReport(kind="RuntimeError", message="Connection closed by peer [10.0.0.1]:1", at=101.0)
    seen = on("n1", code="ES-IB01", blame="network", severity="error", action="CHECK_NETWORK")
    verdict = judge(facts(Exit(rank=0, at=101.0, code=1, error=error), alerts=(seen,)))
    assert (verdict.code, verdict.blame, verdict.node) == ("ES-IB01", Blame.NETWORK, "n1")


def test_a_lost_node_has_a_cause_if_it_said_one():
    lost = LostNode(node="n1", at=101.0, reason="its link was gone", ranks=(1,))
    verdict = judge(facts(lost=(lost,), alerts=(on("n1", code="ES-MC01"),)))
    assert (verdict.code, verdict.node) == ("ES-MC01", "n1")
    assert verdict.sentence.endswith("the agent of n1 is lost")


def test_the_fault_tier_comes_before_the_error_tier():
    seen = (on("n1", code="ES-G48", severity="error", at=99.0), on("n1", code="ES-G79", at=100.0))
    assert judge(facts(Exit(rank=1, at=101.0, signal=6), alerts=seen)).code == "ES-G79"


def test_the_same_gpu_again_is_the_machine():
    user = {"code": "ES-G13", "blame": "user", "severity": "error", "action": "CHECK_USER_CODE"}
    exit_ = Exit(rank=1, at=1000.0, signal=6)
    once = judge(facts(exit_, alerts=(on("n1", at=999.0, **user),)))
    assert once.blame is Blame.USER
    other = judge(facts(exit_, alerts=(on("n1", at=99.0, **{**user, "device": "gpu 1"}), on("n1", at=999.0, **user))))
    assert other.blame is Blame.USER
    again = judge(facts(exit_, alerts=(on("n1", at=99.0, **user), on("n1", at=999.0, **user))))
    assert (again.blame, again.action) == (Blame.MACHINE, "RESET_GPU")


def test_a_rank_that_says_what_a_device_did_is_classified_by_its_words():
    error = ErrorReport(
        kind="RuntimeError",
        message="CUDA error: an illegal memory access was encountered",
        traceback='Traceback (most recent call last):\n  File "train.py", line 3, in f\n'
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        at=101.0,
    )
    found = explain_end("", error, rank=1, at=101.0)
    assert found is not None
    verdict = judge(facts(Exit(rank=1, at=101.0, code=1, error=error, finding=found)))
    assert (verdict.code, verdict.blame) == ("ES-CU04", Blame.USER)
    seen = on("n1", code="ES-G31", blame="user", severity="error", action="CHECK_USER_CODE")
    assert judge(facts(Exit(rank=1, at=101.0, code=1, error=error, finding=found), alerts=(seen,))).code == "ES-G31"


def test_a_victims_words_make_it_a_consequence():
    text = "[rank1]: RuntimeError: [pair.cc:534] Connection closed by peer [127.0.0.1]:4711"
    found = explain_end(text, None, rank=1, at=1.0)
    assert found is not None
    assert found.role == "cascade"
    error = ErrorReport(kind="DistBackendError", message="something new", at=1.0)
    assert looks_like_consequence(Exit(rank=1, at=1.0, code=1, error=error, finding=found))


def test_a_killed_rank_has_not_said_why():
    found = explain_end("RuntimeError: CUDA error: device-side assert triggered", None, rank=1, at=1.0)
    assert judge(facts(Exit(rank=1, at=101.0, signal=9, finding=found))).code == "ES-P09"


def test_nothing_known_is_nothing_said():
    assert explain_end("step 12 loss 3.1\nstep 13 loss 3.0\n", None, rank=0, at=1.0) is None


def test_every_action_of_the_knowledge_base_has_a_sentence():
    assert set(ACTIONS) == {str(action) for action in Action}
