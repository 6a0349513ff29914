"""Which of a run's records become memories of a machine."""

import asyncio

import msgspec
import pytest

from everstep import health
from everstep.analyzer.exits import FaultFacts
from everstep.analyzer.numbers.alerts import SeenAlert
from everstep.controller.remembering import Remembering
from everstep.core.state.schema import Incident, Member, Role, State
from everstep.health.rules import State as Condition
from everstep.health.store import Store
from everstep.knowledge.drained import drained
from everstep.model import actions as act
from everstep.model.events import NodeAlerted, TimerFired
from everstep.model.facts import Alert
from everstep.model.record import Record
from everstep.model.verdict import Blame, Confidence, Decision, Verdict

MEMBERS = {"n1": Member(node="n1", host="gpu-17", pid=1, role=Role.ACTIVE, slot=0)}
DECISION = Decision(chosen="x", rule="r", why="w")


@pytest.fixture
def remembered(tmp_path, monkeypatch):
    """Notes the records, lets them be written, and returns what the memory says of the machine."""
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path))

    def remember(
        *records: Record, incident: Incident | None = None, alerts: tuple[SeenAlert, ...] = ()
    ) -> list[health.HealthEvent]:
        async def note() -> None:
            remembering = Remembering("r1")
            work = asyncio.create_task(remembering.work())
            await asyncio.sleep(0)
            for record in records:
                remembering.note(record, State(members=MEMBERS, incident=incident, alerts=alerts))
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

        asyncio.run(note())
        known = Store().host("gpu-17", 60.0)
        return [] if known is None else list(known.events)

    return remember


def record(*actions: act.Action, event: object = None) -> Record:
    return Record(seq=1, at=50.0, gen=0, event=event or TimerFired(at=50.0, key="k"), actions=actions)


def concluded(code: str, action: str = "") -> act.Concluded:
    verdict = Verdict(
        code=code,
        sentence="s",
        blame=Blame.MACHINE,
        confidence=Confidence.HIGH,
        ranks=(1,),
        node="n1",
        at=49.0,
        action=action,
    )
    return act.Concluded(incident="i1", verdict=verdict, decision=DECISION, why="w")


CLOSED = act.IncidentClosed(incident="i1", outcome="recovered", why="w")


@pytest.mark.parametrize(("code", "action"), [("ES-S01", ""), ("ES-G79", "REPLACE_NODE"), ("ES-G48", "RESET_GPU")])
def test_a_machine_that_a_verdict_names_is_remembered(remembered, code, action):
    opened = act.IncidentOpened(incident="i1", why="w")
    (event,) = remembered(record(opened, concluded(code, action)), record(CLOSED))
    assert (event.kind, event.code, event.run, event.incident) == (health.Kind.INCIDENT, code, "r1", "i1")


def test_other_faults_are_no_memory_of_a_machine(remembered):
    assert remembered(record(concluded("ES-P09")), record(CLOSED)) == []


def test_drills_are_nobodys_fault(remembered):
    opened = act.IncidentOpened(incident="i1", drill="d1", why="w")
    assert remembered(record(opened, concluded("ES-S01")), record(CLOSED)) == []


def test_alerts_of_both_tiers_and_evictions_are_remembered(remembered):
    alerts = tuple(
        Alert(
            at=40.0, code=code, sentence="s", component="gpu", blame="machine", severity=severity, action="REPLACE_NODE"
        )
        for code, severity in (("ES-G79", "fault"), ("ES-G63", "info"))
    )
    event = NodeAlerted(at=40.0, node="n1", alerts=alerts)
    found = remembered(record(event=event), record(act.EvictNode(node="n1", why="w")))
    assert [each.kind for each in found] == [health.Kind.ALERT, health.Kind.EVICTION]


def test_whoever_takes_a_machine_away_says_nothing_against_it(remembered):
    """Three times, which would quarantine it if these were faults."""
    day = 86400.0
    for number in range(3):
        alert = drained(40.0 + number * day, "anna drains this node: a fan", "operator")
        told = NodeAlerted(at=alert.at, node="n1", alerts=(alert,))
        leaves = act.EvictNode(node="n1", why="w")
        happened = [msgspec.structs.replace(each, at=alert.at + 1) for each in (record(event=told), record(leaves))]
        found = remembered(*happened, alerts=(SeenAlert(node="n1", alert=alert),))
    assert len(found) == 6, "it is on record"
    known = Store().host("gpu-17", 3 * day)
    assert known is not None
    assert (known.state, known.score) == (Condition.HEALTHY, 0.0)


def test_an_eviction_of_a_drill_is_no_memory(remembered):
    incident = Incident(id="i1", opened_at=1.0, generation=0, facts=FaultFacts(at=1.0), drill="d1")
    opened = act.IncidentOpened(incident="i1", drill="d1", why="w")
    assert remembered(record(opened), record(act.EvictNode(node="n1", why="w")), incident=incident) == []
