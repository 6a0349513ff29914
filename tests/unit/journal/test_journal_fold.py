"""The fold against the brain itself: a pretended cluster writes the journal, the view must say what happened."""

import pytest

from everstep.core.state.policy import Policy
from everstep.goodput.buckets import Bucket
from everstep.goodput.figures import goodput_of
from everstep.journal.fold import Fold, fold
from everstep.journal.format import UnknownRecord
from everstep.journal.history import history_of
from everstep.journal.view import RunStatus, RunView
from everstep.knowledge.drained import drained, withdrawn
from everstep.model import events
from everstep.model.facts import Alert
from everstep.model.record import Header, Record
from everstep.model.spec import Mode, RunSpec
from everstep.report.now.status import doing, render_status
from everstep.report.parts.asked import Asked
from everstep.testing.cluster import Cluster

SPEC = RunSpec(program="train.py", num_slots=2, nproc_per_node=2)


def cluster(policy: Policy | None = None, **changes: object) -> Cluster:
    spec = RunSpec(**{**{name: getattr(SPEC, name) for name in SPEC.__struct_fields__}, **changes})
    made = Cluster(spec, policy)
    made.start()
    return made


def view_of(made: Cluster) -> RunView:
    header = Header(run="r0001", everstep_version="test", policy={"max_restarts": 10, "budget_window_s": 3600.0})
    return fold(header, made.records)


def test_a_run_that_succeeds() -> None:
    made = cluster()
    assert view_of(made).status is RunStatus.RUNNING
    made.train(3)
    made.succeed()
    view = view_of(made)
    assert view.status is RunStatus.SUCCEEDED
    assert (view.stepped.last_step, view.incidents, view.restarts) == (2, {}, [])
    assert view.finish.exit_code == 0


def test_a_killed_rank_in_all_its_parts() -> None:
    made = cluster()
    made.train(5)
    made.kill(2)
    made.train(1)
    view = view_of(made)
    incident = view.incidents["i1"]
    assert (incident.outcome, incident.generation, incident.next_generation) == ("recovered", 0, 1)
    assert (incident.lost_steps, incident.resumed_step) == (0, 5)
    assert incident.verdict.code == "ES-P09"
    assert incident.fault_at <= incident.opened_at <= incident.stopped_at
    assert [type(r.event).__name__ for r in incident.records][:2] == ["WorkerExited", "WorkersStopped"]
    assert view.restarts_used(made.clock.now) == 1
    assert view.restarts_used(made.clock.now + 4000.0) == 0
    assert view.generations[0].incident == "i1"
    assert view.generations[1].incident is None


def test_what_is_going_on_in_each_part_of_a_recovery() -> None:
    made = cluster()
    made.train(2)
    made.held_back = {"StopWorkers"}
    made.kill(0)
    view = view_of(made)
    assert view.status is RunStatus.RECOVERING
    assert "ending the workers of generation 0" in doing(view, view.incident)
    made = cluster()
    made.train(2)
    made.held_back = {"StartWorkers"}
    made.kill(0)
    view = view_of(made)
    assert "forming generation 1: 0/4 ranks started" in doing(view, view.incident)


def test_settling_waits_for_the_culprit() -> None:
    made = cluster()
    made.train(2)
    made.lose_peer(0)
    view = view_of(made)
    assert view.status is RunStatus.RECOVERING
    assert "waiting for the rank that caused it" in doing(view, view.incident)
    assert view.incident.verdict is None
    text = render_status(view, goodput_of(history_of(view)), Asked(at=made.clock.now, controller_pid=1))
    assert "nothing concluded yet" in text


def test_a_second_fault_supersedes_the_first() -> None:
    made = cluster()
    made.train(2)
    made.kill(0)
    made.kill(1)
    made.train(1)
    view = view_of(made)
    assert [i.outcome for i in view.incidents.values()] == ["superseded", "recovered"]
    assert [i.next_generation for i in view.incidents.values()] == [1, 2]
    assert len(view.restarts) == 2


def test_mode_advise_waits_for_approval_and_goes_on() -> None:
    made = cluster(mode=Mode.ADVISE)
    made.train(2)
    made.kill(0)
    view = view_of(made)
    assert view.status is RunStatus.WAITING_FOR_APPROVAL
    text = render_status(view, goodput_of(history_of(view)), Asked(at=made.clock.now, controller_pid=1))
    assert "everstep approve i1" in text
    made.feed(events.ProposalApproved(at=made.clock.now, incident="i1", by="me"))
    made.train(1)
    view = view_of(made)
    assert view.status is RunStatus.RUNNING
    assert view.incidents["i1"].outcome == "recovered"


def test_mode_observe_ends_as_failed() -> None:
    made = cluster(mode=Mode.OBSERVE)
    made.train(2)
    made.kill(0)
    view = view_of(made)
    assert (view.status, view.finish.exit_code) == (RunStatus.FAILED, 11)


def test_a_stop_is_stopping_then_stopped() -> None:
    made = cluster()
    made.train(2)
    made.held_back = {"StopWorkers"}
    made.feed(events.StopRequested(at=made.clock.now, why="SIGINT", signal=2))
    assert view_of(made).status is RunStatus.STOPPING
    made = cluster()
    made.feed(events.StopRequested(at=made.clock.now, why="SIGINT", signal=2))
    assert (view_of(made).status, view_of(made).finish.exit_code) == (RunStatus.STOPPED, 130)


def test_a_lost_node_and_the_one_that_replaces_it() -> None:
    made = cluster()
    made.train(2)
    made.lose_node("n1")
    made.train(1)
    view = view_of(made)
    assert view.nodes["n1"].lost is not None
    assert [view.nodes[n].slot for n in ("n0", "n1", "n2")] == [0, None, 1]
    assert history_of(view).generations[0].ending.unseen_ranks == {2, 3}


def test_a_run_that_was_started_again_has_a_gap_that_nobody_measured() -> None:
    made = cluster()
    made.train(2)
    made.clock.now += 100.0
    made.feed(events.RunReopened(at=made.clock.now, attempt=2))
    made.train(1)
    view = view_of(made)
    assert (view.attempt, len(view.gaps)) == (2, 1)
    seconds = goodput_of(history_of(view)).seconds
    assert seconds[Bucket.NOT_MEASURED] >= 4 * 100.0
    assert view.status is RunStatus.RUNNING


def test_unknown_records_are_counted_and_shown() -> None:
    made = cluster()
    made.train(1)
    header = Header(run="r0001", everstep_version="test", policy={})
    last = made.records[-1]
    unknown = UnknownRecord(seq=last.seq + 1, at=last.at + 1.0, gen=0, type="GpuMelted", raw={})
    view = fold(header, [*made.records, unknown], torn_bytes=7)
    text = render_status(view, goodput_of(history_of(view)), Asked(at=last.at + 2.0, controller_pid=None))
    assert "GpuMelted (1)" in text
    assert "last 7 bytes" in text
    assert view.last_at == last.at + 1.0


def test_a_journal_without_a_record_is_a_run_that_has_not_begun() -> None:
    view = fold(Header(run="r0001", everstep_version="test", policy={}), [])
    assert view.status is RunStatus.STARTING
    goodput = goodput_of(history_of(view))
    assert (goodput.ettr, goodput.num_ranks) == (None, 0)
    assert "no step yet" in render_status(view, goodput, Asked(at=1.0, controller_pid=None))


def test_what_did_not_go_as_wished_is_noted() -> None:
    made = cluster()
    made.train(1)
    now = made.clock.now
    made.feed(events.TemplateReported(at=now, node="n0", usable=False, why="it has threads"))
    refusal = {"needed_bytes": 10, "free_bytes": 5, "why": "10 bytes asked for, 5 free"}
    made.feed(events.SnapshotsRefused(at=now, node="n0", rank=1, generation=0, **refusal))
    made.feed(events.RuntimeFaulted(at=now, node="n0", rank=1, generation=0, where="State", why="oops"))
    made.restart_controller()
    view = view_of(made)
    text = render_status(view, goodput_of(history_of(view)), Asked(at=now, controller_pid=1))
    for note in ("it has threads", "10 bytes asked for", "State: oops", "controller was restarted 1 time"):
        assert note in text


def told(made: Cluster, alert: Alert) -> str:
    made.feed(events.NodeAlerted(at=made.clock.now, node="n1", alerts=(alert,)))
    view = view_of(made)
    return render_status(view, goodput_of(history_of(view)), Asked(at=made.clock.now, controller_pid=1))


def test_a_drain_is_no_restart_that_counts() -> None:
    made = cluster(num_standby=1)
    made.train(2)
    told(made, drained(made.clock.now, "anna drains this node: a fan", "operator"))
    made.train(1)
    view = view_of(made)
    assert (len(view.generations), view.restarts_used(made.clock.now)) == (2, 0)
    assert made.state.restarts == ()


def test_a_drain_that_waits_for_a_node_is_noted_until_it_is_taken_back() -> None:
    made = cluster()
    made.train(2)
    note = "n1: to be left when another node is ready: anna drains this node: a fan"
    assert note in told(made, drained(made.clock.now, "anna drains this node: a fan", "operator"))
    assert "to be left" not in told(made, withdrawn(made.clock.now, "anna lets this node stay", "operator"))


@pytest.mark.parametrize("late", [True, False])
def test_an_account_that_arrives_late_does_not_turn_back_the_step(late: bool) -> None:
    made = cluster()
    made.train(3)
    records = list(made.records)
    if late:
        stale = next(
            r for r in records if isinstance(r.event, events.MarksReported) and r.event.accounts[0].last_step == 0
        )
        records.append(Record(seq=records[-1].seq + 1, at=records[-1].at, gen=0, event=stale.event))
    view = fold(Header(run="r", everstep_version="t", policy={}), records)
    assert view.stepped.last_step == 2


def test_an_incident_that_was_dismissed_did_not_end_its_generation():
    cluster = Cluster(RunSpec(program="train.py", nproc_per_node=2))
    cluster.start()
    cluster.train(2)
    cluster.hang(None)
    folding = Fold(Header(run="r0001", everstep_version="t", policy={}))
    for record in cluster.records:
        folding.add(record)
    assert folding.view.incidents["i1"].outcome == "dismissed"
    assert folding.view.generations[0].incident is None
    cluster.train(1)
    cluster.hang(1)
    for record in cluster.records[folding.view.last_seq :]:
        folding.add(record)
    assert folding.view.generations[0].incident == "i2"
    assert folding.view.incidents["i2"].next_generation == 1
