"""Standstills of a journal: what ended in a restart was a hang, what went on by itself was none."""

import pytest

from everstep.cli.main import main
from everstep.core.state.policy import Policy
from everstep.model.actions import Concluded, IncidentClosed
from everstep.model.events import Diagnosed, StandstillEnded, TimerFired
from everstep.model.record import Record
from everstep.model.verdict import Blame, Certainty, Confidence, Decision, Verdict
from everstep.simulate.price import Standstill
from everstep.simulate.standstills import recorded


def verdict(certainty: Certainty, place: str = "train.py:88 upload", **what: object) -> Verdict:
    return Verdict(
        code="ES-H02",
        sentence="rank 0 keeps the others waiting",
        blame=Blame.UNKNOWN,
        confidence=Confidence.MEDIUM,
        at=1.0,
        certainty=certainty,
        place=place,
        **what,
    )


def begun(seq: int, incident: str, said: Verdict, limit_s: float | None = None) -> Record:
    event = Diagnosed(at=1.0, generation=0, incident=incident, verdict=said, limit_s=limit_s)
    decision = Decision(chosen="something", rule="wait", why="w")
    concluded = Concluded(incident=incident, verdict=said, decision=decision, why="w")
    return Record(seq=seq, at=1.0, gen=0, event=event, actions=(concluded,))


def ended(seq: int, incident: str, outcome: str, lasted_s: float | None = None) -> Record:
    event = (
        TimerFired(at=9.0, key="x")
        if lasted_s is None
        else StandstillEnded(at=9.0, generation=0, incident=incident, lasted_s=lasted_s)
    )
    closed = IncidentClosed(incident=incident, outcome=outcome, why="w")
    return Record(seq=seq, at=9.0, gen=0, event=event, actions=(closed,))


def test_a_restart_is_a_hang_and_what_went_on_is_a_healthy_wait_as_long_as_it_lasted():
    records = [
        begun(1, "i1", verdict(Certainty.CERTAIN, place="")),
        ended(2, "i1", "recovered"),
        begun(3, "i2", verdict(Certainty.DOUBTFUL, computes=True), limit_s=600.0),
        ended(4, "i2", "passed", lasted_s=41.0),
    ]
    assert recorded(records, Policy()) == (
        Standstill(what="ES-H02", certain=True),
        Standstill(what="train.py:88 upload", lasted_s=41.0, computes=True, limit_s=600.0),
    )


@pytest.mark.parametrize("outcome", ["stopped", "run-ended", "dismissed", "superseded", "observed"])
def test_nobody_knows_how_a_standstill_would_have_ended_that_something_else_ended(outcome):
    records = [begun(1, "i1", verdict(Certainty.DOUBTFUL)), ended(2, "i1", outcome)]
    assert recorded(records, Policy()) == ()


def test_a_verdict_of_an_older_version_that_does_not_say_how_certain_it_is_is_left_out():
    records = [begun(1, "i1", verdict(Certainty.UNSTATED)), ended(2, "i1", "recovered")]
    assert recorded(records, Policy()) == ()


def test_the_page_shows_every_rule_and_says_where_the_standstills_are_from(capsys):
    assert main(["policies", "--set", "hang_outside_s=12"]) == 0
    text = capsys.readouterr().out
    assert "everstep's own benchmarks" in text
    assert "hang_outside_s      12" in text
    for rule in ("by the price of a mistake", "always 2 s", "always 30 s", "never"):
        assert rule in text


def test_a_journal_of_before_has_no_standstill_with_a_known_end(capsys):
    assert main(["policies", "--run", "tests/golden/journal.jsonl"]) == 0
    assert "no standstill with a known end is on record" in capsys.readouterr().out
