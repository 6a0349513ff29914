"""bench/faults.py's pure parts: the plan of the matrix, the reading of a journal, and what counts as right."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from matrix.faults_matrix import KINDS, LOUD, SPOILING, Fault, Reading, Results, plan
from matrix.faults_report import matrix_document, matrix_report
from matrix.faults_run import Journal


def fault(kind: str = "stop", rank: int = 2, **changes: object) -> Fault:
    return Fault(kind=kind, layout="dp", seed=0, rank=rank, delay_s=0.5, **changes)


def test_a_seed_is_a_plan_with_every_kind_on_every_layout_and_what_spoils_a_training_last():
    cells = plan(KINDS, ("dp", "2x2"), 3, 4, slow_seeds=1)
    assert cells == plan(KINDS, ("dp", "2x2"), 3, 4, slow_seeds=1)
    for layout in ("dp", "2x2"):
        kinds = [cell.kind for cell in cells if cell.layout == layout]
        usual = dict.fromkeys(KINDS, 3) | {"slow": 1} | ({"opposite-order": 0} if layout == "dp" else {})
        assert {kind: kinds.count(kind) for kind in KINDS} == usual
        first = min((kinds.index(kind) for kind in SPOILING if kind in kinds), default=len(kinds))
        assert set(kinds[first:]) <= set(SPOILING)
    assert {cell.rank for cell in cells} == {0, 1, 2, 3}
    assert not set(KINDS) & set(LOUD)


@pytest.mark.parametrize(
    ("ranks", "group", "right"),
    [
        ((2,), (), (True, True)),
        ((1, 2), (), (False, True)),
        ((1,), (1, 2), (False, True)),
        ((1,), (0, 1), (False, False)),
    ],
)
def test_right_rank_and_right_group(ranks, group, right):
    one = fault(ranks=ranks, group=group)
    assert (one.right_rank, one.right_group) == right


def test_nobody_is_named_is_wrong_and_a_nan_has_no_culprit():
    assert fault(group=(0, 1, 2, 3)).right_group is False
    assert (fault("nan").right_rank, fault("nan").right_group) == (None, None)


VERDICT = {"code": "ES-H01", "sentence": "rank 2 is stopped", "ranks": [2], "group_ranks": [0, 1, 2, 3]}
STORY = [
    {"event": {"type": "HangSuspected", "at": 1.0}, "actions": [{"type": "IncidentOpened", "incident": "i1"}]},
    {"event": {"type": "DrillRequested", "at": 10.0, "drill": "d1"}},
    {
        "event": {"type": "HangSuspected", "at": 12.5},
        "actions": [{"type": "IncidentOpened", "incident": "i2", "drill": "d1"}],
    },
    {
        "event": {"type": "Diagnosed", "at": 13.0},
        "actions": [{"type": "Concluded", "incident": "i2", "verdict": VERDICT}],
    },
    {
        "event": {"type": "MarksReported", "at": 13.6},
        "actions": [
            {"type": "IncidentClosed", "incident": "i2", "outcome": "recovered", "recovered_at": 13.5, "lost_steps": 0}
        ],
    },
]


def test_times_are_counted_from_the_drills_own_record():
    one = fault()
    reading = Reading(one, "d1")
    for record in STORY:
        reading.take(record)
    assert reading.is_over
    assert (one.detect_s, one.verdict_s, one.recover_s) == (2.5, 3.0, 3.5)
    assert (one.code, one.ranks, one.outcome, one.lost_steps) == ("ES-H01", (2,), "recovered", 0)
    assert one.ended_well


def test_what_ends_loudly_is_seen_but_no_figure_of_the_hang_rule():
    loud = fault("mismatched-shape")
    reading = Reading(loud, "d1")
    reading.take({"event": {"type": "DrillRequested", "at": 1.0, "drill": "d1"}})
    opened = {"type": "IncidentOpened", "incident": "i1", "drill": "d1"}
    reading.take({"event": {"type": "WorkerExited", "at": 1.1}, "actions": [opened]})
    assert (loud.seen_by, loud.is_loud) == ("WorkerExited", True)
    seen = fault(seen_by="HangSuspected", detect_s=2.0)
    text = matrix_report(Results(faults=[seen, loud]))
    assert "1 hangs, detected in 2.00 s (median)" in text
    assert "1 more ended loudly" in text


def test_an_incident_that_is_not_the_drills_is_not_taken_for_it():
    one = fault()
    reading = Reading(one, "d1")
    reading.take(STORY[1])
    opened = {"type": "IncidentOpened", "incident": "i9"}
    reading.take({"event": {"type": "HangSuspected", "at": 10.1}, "actions": [opened]})
    assert one.detect_s is None
    reading.take(STORY[2])
    assert one.detect_s == 2.5


def test_a_refused_drill_is_over():
    one = fault()
    reading = Reading(one, "d1")
    reading.take({"event": {"type": "DrillRequested", "at": 1.0, "drill": "d1"}})
    refused = {"type": "Refused", "what": "drill d1 (stop)", "why": "there is no rank 9"}
    reading.take({"event": {"type": "DrillFailed", "at": 1.1}, "actions": [refused]})
    assert (reading.is_over, one.why, one.ended_well) == (True, "refused: there is no rank 9", False)


def test_what_was_never_detected_is_never_and_not_zero():
    seen = fault(detect_s=2.0, ranks=(2,), code="ES-H01", outcome="recovered")
    text = matrix_report(Results(faults=[seen, fault(why="nothing more within 40 s")], false_alarms=["i7: odd"]))
    assert "never (p95)" in text
    assert "right rank 1/2" in text
    assert "false alarms between the faults: 1" in text
    document = json.dumps(matrix_document(Results(faults=[fault()])))
    assert json.loads(document)["faults"][0]["detect_s"] is None


def test_a_journal_is_read_by_whole_lines(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    assert journal.read() == []
    lines = [json.dumps({"kind": "everstep-journal"}), *(json.dumps(record) for record in STORY)]
    path.write_text("\n".join(lines[:3]) + "\n" + lines[3][:20])
    assert len(journal.read()) == 2
    path.write_text("\n".join(lines) + "\n")
    assert len(journal.read()) == 3
    assert [action["incident"] for action in journal.actions("IncidentOpened")] == ["i1", "i2"]
