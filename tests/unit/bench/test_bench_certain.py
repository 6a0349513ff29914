"""bench/certain.py's pure parts: which kinds there are, the reading of a journal, and what breaks the contract."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from certain import failures, report
from jobs.certain_names import CERTAIN, COMPUTES, DOUBTFUL
from jobs.certain_run import Found, Hang, Reading


def found(kind: str = "stopped", mode: str = "plain", **what: object) -> Found:
    return Found(hang=Hang(kind=kind, certain=kind in CERTAIN, mode=mode), **what)


def test_there_are_enough_kinds_of_both_classes():
    assert len(CERTAIN) >= 15
    assert len(DOUBTFUL) >= 8
    assert set(COMPUTES) < set(DOUBTFUL)
    assert not set(CERTAIN) & set(DOUBTFUL)


def test_only_what_comes_after_the_hang_is_read_and_the_first_of_each_counts():
    one = found()
    reading = Reading(one)
    verdict = {"code": "ES-H01", "sentence": "rank 2 is stopped", "ranks": [2], "certainty": "certain"}
    opened, concluded = {"type": "IncidentOpened"}, {"type": "Concluded", "verdict": verdict}
    start, stop = {"type": "StartWorkers"}, {"type": "StopWorkers"}
    reading.take({"at": 1.0, "event": {"type": "RunStarted"}, "actions": [start]})
    reading.take({"at": 12.0, "event": {"type": "HangSuspected"}, "actions": [opened]})
    reading.begin(10.0)
    reading.take({"at": 12.5, "event": {"type": "Diagnosed"}, "actions": [concluded, stop]})
    reading.take({"at": 12.6, "event": {"type": "WorkerExited"}})
    reading.take({"at": 13.0, "event": {"type": "HangSuspected"}, "actions": [opened, start]})
    assert (one.report_s, one.verdict_s, one.action_s) == (2.0, 2.5, 2.5)
    assert (one.code, one.certainty, one.right, one.loud) == ("ES-H01", "certain", True, False)


def test_a_rank_that_ends_by_itself_makes_it_loud():
    one = found("left-early")
    reading = Reading(one)
    reading.begin(10.0)
    reading.take({"at": 10.1, "event": {"type": "WorkerExited"}})
    assert one.loud


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (found(action_s=2.5), []),
        (found(action_s=31.0), ["certain, plain: median 31.0 s, p95 31.0 s"]),
        (found(), ["certain, plain: median never, p95 never"]),
        (found("polls", "state", action_s=44.0), []),
        (found("polls", "state", action_s=60.0), ["polls-state-0: acted on after 60.0 s, allowed 45 s"]),
        (found("loop-torch", "state", action_s=60.0), []),
        (found("polls", action_s=31.0, report_s=3.0), ["polls-plain-0: a plain program was restarted after 31.0 s"]),
        (found("polls", action_s=52.0, report_s=31.0), ["polls-plain-0: reported after 31.0 s, allowed 10 s"]),
        (found("polls", action_s=52.0, report_s=6.0), []),
        (found(action_s=2.5, trouble="ended with 1"), ["stopped-plain-0: ended with 1"]),
    ],
)
def test_what_breaks_the_contract_is_said(one, said):
    assert failures([one]) == said
    assert report([one]).endswith("FAIL" if said else "PASS")
