"""What `everstep drill` makes of the journal: passed only when the right thing happened to the right rank."""

import argparse

import pytest

from everstep.cli.act import drill as cli
from everstep.core.faults.drills import KINDS
from everstep.errors import ConfigError
from everstep.model import actions as act
from everstep.model.events import DrillRequested, TimerFired
from everstep.model.record import Record
from everstep.model.verdict import Blame, Confidence, Decision, Verdict

DECISION = Decision(chosen="x", rule="x", why="x")


def watch(kind: str, rank: int = 2) -> cli._Watch:
    result = cli.DrillResult(drill="d1", kind=kind, expected=cli.EXPECTED[kind].text)
    made = cli._Watch(result, rank)
    made.add(Record(seq=1, at=10.0, gen=0, event=DrillRequested(at=10.0, drill="d1", kind=kind, rank=rank)))
    return made


def incident(made: cli._Watch, code: str, *ranks: int, outcome: str, name: str = "i1") -> cli.DrillResult:
    verdict = Verdict(code=code, sentence="x", blame=Blame.UNKNOWN, confidence=Confidence.HIGH, ranks=ranks, at=11.0)
    actions = (
        act.IncidentOpened(incident=name, drill="d1", why="x"),
        act.Concluded(incident=name, verdict=verdict, decision=DECISION, why="x"),
        act.IncidentClosed(incident=name, outcome=outcome, why="x", recovered_at=14.0),
    )
    made.add(Record(seq=2, at=13.0, gen=0, event=TimerFired(at=13.0, key="x"), actions=actions))
    return made.result


def test_every_drill_says_what_it_expects():
    assert set(cli.EXPECTED) == set(KINDS)


@pytest.mark.parametrize(
    ("kind", "code", "ranks", "outcome", "passed"),
    [
        ("skip-collective", "ES-H02", (2,), "recovered", True),
        ("skip-collective", "ES-H05", (2, 3), "recovered", True),
        ("skip-collective", "ES-H02", (1,), "recovered", False),
        ("skip-collective", "ES-H15", (), "recovered", False),
        ("skip-collective", "ES-H02", (2,), "dismissed", False),
        ("mismatched-shape", "ES-P02", (0,), "recovered", True),
        ("mismatched-shape", "ES-H04", (2,), "recovered", True),
        ("mismatched-shape", "ES-H04", (3,), "recovered", False),
        ("stop", "ES-H07", (2,), "recovered", False),
        ("flip-bit", "ES-N05", (0, 1), "observed", True),
        ("flip-bit", "ES-N04", (1,), "observed", False),
        ("nan", "ES-N01", (), "observed", True),
        ("slow", "ES-S01", (2,), "recovered", True),
    ],
)
def test_passed_only_when_it_is_what_was_expected(kind, code, ranks, outcome, passed):
    assert incident(watch(kind), code, *ranks, outcome=outcome).passed is passed


def test_what_comes_before_the_expected_is_waited_through():
    made = watch("slow")
    incident(made, "ES-S03", outcome="observed")
    assert not made.is_over
    result = incident(made, "ES-S01", 2, outcome="observed", name="i2")
    assert (made.is_over, result.passed, result.incident, result.detect_s) == (True, True, "i2", 3.0)


def test_a_machine_that_computes_wrongly_has_to_be_found():
    made = watch("miscompute")
    inject = act.Inject(drill="d1", kind="miscompute", node="n2", rank=None, generation=0, options={}, why="x")
    made.add(Record(seq=2, at=10.0, gen=0, event=TimerFired(at=10.0, key="x"), actions=(inject,)))
    incident(made, "ES-N05", 1, 2, outcome="recovered")
    assert not made.is_over, "it went back, and the machine is still there"
    evict = (act.EvictNode(node="n2", why="x"),)
    made.add(Record(seq=3, at=13.0, gen=0, event=TimerFired(at=13.0, key="x"), actions=evict))
    result = incident(made, "ES-N05", 1, 2, outcome="recovered", name="i2")
    assert (result.passed, result.incident) == (True, "i2")
    assert "n2 was found and replaced" in result.got


def test_a_job_that_does_not_stop_for_it_finds_nobody():
    assert incident(watch("miscompute"), "ES-N05", 1, 2, outcome="observed").passed
    assert not incident(watch("miscompute"), "ES-N02", 1, 2, outcome="observed").passed, "a jump alone says nothing yet"


def test_a_hang_is_timed_from_the_fault_and_not_from_the_drill():
    result = incident(watch("stop"), "ES-H01", 2, outcome="recovered")
    assert (result.detect_s, result.recover_s) == (2.0, 1.0)


def test_the_refusal_of_another_drill_is_not_ours():
    made = watch("nan")
    for what, is_over in (("drill d10 (nan)", False), ("drill d1", True)):
        refused = (act.Refused(what=what, why="no"),)
        made.add(Record(seq=3, at=1.0, gen=0, event=TimerFired(at=1.0, key="x"), actions=refused))
        assert made.is_over is is_over


def body(*argv: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    given = parser.parse_args(argv)
    return cli._body(given.kind, given.target, cli._options(given))


def test_options_of_the_command_line():
    assert body("slow", "2", "--percent", "30", "--pattern", "growing") == {
        "kind": "slow",
        "rank": 2,
        "options": {"percent": 30.0, "pattern": "growing"},
    }
    assert body("nan", "0") == {"kind": "nan", "rank": 0, "options": {}}
    with pytest.raises(ConfigError, match="takes no options"):
        body("nan", "0", "--percent", "30")
    with pytest.raises(ConfigError, match="above 0"):
        body("slow", "0", "--seconds", "-1")
    with pytest.raises(ConfigError, match="takes no options"):
        body("kill-agent", "--seconds", "3")
    with pytest.raises(ConfigError, match="needs a rank"):
        body("slow")
