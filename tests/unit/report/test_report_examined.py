"""What a person reads of an examination: who was examined, at what, with what result, and what comes next."""

import msgspec

from everstep.core.state.policy import Policy
from everstep.journal.fold import fold
from everstep.journal.view import RunView
from everstep.model.record import Header
from everstep.model.spec import RunSpec
from everstep.report.incidents.examined import examined_lines
from everstep.report.incidents.explain import render_explanation
from everstep.report.incidents.incident import render_incident
from everstep.report.now.narrate import Narrator
from everstep.testing import Cluster

POLICY = Policy(blind_restarts=0)
HEADER = Header(run="r0001", everstep_version="test", policy=msgspec.to_builtins(POLICY))


def examined(kinds: str, mute: str = "") -> tuple[Cluster, RunView]:
    """A crash of n0's rank in a job of 4 nodes, of which n2 fails at these."""
    cluster = Cluster(RunSpec(program="t", num_slots=4, num_standby=1), POLICY)
    cluster.start()
    cluster.train(2)
    if kinds:
        cluster.exams.break_at("n2", kinds)
    if mute:
        cluster.exams.mute.add(mute)
    cluster.end(0, signal=11)
    cluster.train(1)
    return cluster, fold(HEADER, cluster.records)


def test_the_incident_shows_who_was_examined_and_why_it_was_evicted() -> None:
    _, view = examined("all-gather")
    incident = view.incidents["i1"]
    assert examined_lines(incident) == [
        "i1/1 self            passed    n0, n1, n2 and n3   (0.1 s)",
        "i1/2 all-gather      failed    n2+n3: the data was not what was sent",
        "i1/2 all-gather      passed    n0+n1   (0.1 s)",
        "i1/3 all-gather      failed    n1+n2: the data was not what was sent",
        "i1/3 all-gather      passed    n3+n0   (0.1 s)",
    ]
    text = render_incident(view, incident)
    assert "  i1/3 all-gather      failed    n1+n2: the data was not what was sent" in text
    assert "it fails with n3 and n1, which pass with other machines" in text
    assert "evict n2; restart all 4 ranks as generation 1 on a standby   (rule evict)" in text


def test_who_computed_something_else_did_not_just_pass() -> None:
    _, view = examined("alignment")
    assert examined_lines(view.incidents["i1"])[-2:] == [
        "i1/4 alignment       differs   n2: one step was computed",
        "i1/4 alignment       passed    n0, n1 and n3   (0.1 s)",
    ]


def test_the_explanation_says_what_comes_next_and_what_is_not_known() -> None:
    _, view = examined("", mute="n1")
    text = render_explanation(view, view.incidents["i1"])
    assert "not known n1: its processes could not be made" in text
    assert "if it comes again: replay the job's layout on groups of machines" in text
    assert "that is unknown, and neither" in text
    assert "policy blind_restarts = 0 and course_s = 1800 s: when machines are examined" in text


def test_an_incident_without_examination_has_no_such_section() -> None:
    cluster = Cluster(RunSpec(program="t", num_slots=2), POLICY)
    cluster.start()
    cluster.train(1)
    cluster.kill(0)
    view = fold(HEADER, cluster.records)
    assert examined_lines(view.incidents["i1"]) == []
    assert "examined" not in render_incident(view, view.incidents["i1"])


def test_the_live_lines_tell_each_examination_once_and_of_the_answers_only_bad_ones() -> None:
    cluster, _ = examined("alignment,all-gather")
    narrator = Narrator(HEADER)
    lines = [line for record in cluster.records for line in narrator.tell(record)]
    told = [line.split(" ", 1)[1] for line in lines if "i1/" in line]
    assert told[:2] == ["examining machines: self (i1/1)", "examining machines: all-gather (i1/2)"]
    assert sum("examining" in line for line in told) == 3
    assert not any("passed" in line for line in told)
    assert "n2 failed i1/2: the data was not what was sent (0.1s)" in told
