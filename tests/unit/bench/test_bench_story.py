"""bench/story.py: which turns are a kill's story, and what counts as a return."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
import story


def record(seq, kind, *actions, source="n0"):
    decided = [{"type": action} for action in actions]
    return {"seq": seq, "source": source, "source_seq": seq, "event": {"type": kind}, "actions": decided}


def turn(seq, kind, *hops, source="n0"):
    return {"inputs": [[source, seq, kind]], "hops": list(hops)}


RECORDS = [
    record(1, "WorkersStarted"),
    record(2, "MarksReported", "SetTimer"),
    record(3, "WorkerExited", "IncidentOpened", "StopWorkers"),
    record(4, "WorkersStopped", "OpenStore"),
    record(5, "StoreOpened", "StartWorkers"),
    record(6, "WorkersStarted"),
    record(7, "MarksReported"),
    record(8, "MarksReported", "IncidentClosed"),
]


def test_the_story_is_the_five_turns_from_the_end_of_the_rank_to_the_end_of_the_incident():
    traced = [turn(r["seq"], r["event"]["type"], "a.py") for r in RECORDS] + [{"others": ["b.py"]}]
    found = story._of_the_kill(RECORDS, traced)
    assert [each["inputs"][0][1] for each in found] == [3, 4, 5, 6, 8]
    assert [each["record"] for each in found] == [
        "WorkerExited", "WorkersStopped", "StoreOpened", "WorkersStarted", "MarksReported",
    ]  # fmt: skip


def test_a_return_is_a_call_into_a_file_that_this_turn_has_left():
    turns = [
        turn(3, "WorkerExited", "a.py", "b.py", "a.py", "core/state/turn.py", "a.py", "c.py")
        | {"record": "WorkerExited"},
        turn(4, "WorkersStopped", "a.py", "d.py") | {"record": "WorkersStopped"},
    ]
    found = story._figures(turns)
    assert (found["files"], found["returns"]) == (5, 2)
    assert (found["files_of_stages"], found["returns_of_stages"]) == (4, 1), "what a word says is not a stage"
    assert found["by_turn"] == {"WorkerExited": [4, 2], "WorkersStopped": [2, 0]}
