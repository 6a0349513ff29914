"""The journal and its fold stay one: whatever happens between two records, the next controller knows the same."""

import math

import msgspec
import pytest

from everstep.controller.record.drafting import Poison
from everstep.controller.record.ledger import Ledger
from everstep.controller.record.spec_file import SpecFile
from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.journal.reader import read_journal
from everstep.model.actions import AcquireNode, Finish, OpenStore, StartWorkers
from everstep.model.events import (
    ControllerStarted,
    MarksReported,
    NodeJoined,
    RunReopened,
    RunStarted,
    StopRequested,
    StoreOpened,
)
from everstep.model.facts import RankAccount
from everstep.model.spec import RunSpec

WANTED = SpecFile(run="r1", spec=RunSpec(program="train.py", nproc_per_node=2), policy=Policy())


def open_ledger(run_dir, wanted=WANTED, at=100.0):
    return Ledger.open(run_dir, wanted, pid=7, at=at)


def take(ledger, event, source="", seq=0):
    draft = ledger.draft(event, at=event.at, after=[], source=source, seq=seq)
    if not draft.is_stale:
        ledger.commit([draft])
    return draft


def start_workers(ledger):
    take(ledger, NodeJoined(at=101.0, node="n0", host="h", pid=1), "n0", 1)
    return take(ledger, StoreOpened(at=101.1, generation=0, host="127.0.0.1", port=1), "launcher-1", 1)


def test_a_new_run_begins_with_its_start_and_its_controller(tmp_path):
    with open_ledger(tmp_path).journal:
        pass
    entries = read_journal(tmp_path / "journal.jsonl").entries
    assert [type(entry.event) for entry in entries] == [RunStarted, ControllerStarted]
    assert [type(action) for action in entries[0].actions][:2] == [OpenStore, AcquireNode]


def test_a_second_controller_comes_to_the_same_state(tmp_path):
    first = open_ledger(tmp_path)
    draft = start_workers(first)
    assert StartWorkers in [type(action) for action in draft.record.actions]
    first.close()
    second = open_ledger(tmp_path, at=200.0)
    assert second.state == first.state
    assert second.last_seqs == first.last_seqs == {"n0": 1, "launcher-1": 1}
    assert second.num_mismatches == 0
    second.close()
    took_over = read_journal(tmp_path / "journal.jsonl").entries[-1].event
    assert took_over == ControllerStarted(at=200.0, pid=7, took_over=True)


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_torn_last_record_is_cut_off_and_said(tmp_path, cut):
    first = open_ledger(tmp_path)
    before = first.state
    start_workers(first)
    first.close()
    path = tmp_path / "journal.jsonl"
    path.write_bytes(path.read_bytes()[: -1 - cut])  # the newline, and into the record
    second = open_ledger(tmp_path, at=200.0)
    assert second.state.generation == before.generation == -1
    assert second.is_known("n0", 1)
    assert not second.is_known("launcher-1", 1), "its report was not acknowledged: it must be taken again"
    second.close()
    event = read_journal(path).entries[-1].event
    assert isinstance(event, ControllerStarted)
    assert event.torn_bytes > 0


def test_a_report_that_comes_again_is_known(tmp_path):
    ledger = open_ledger(tmp_path)
    start_workers(ledger)
    assert ledger.is_known("n0", 1)
    assert not ledger.is_known("n0", 2)
    assert not ledger.is_known("n1", 1)
    ledger.close()


def test_a_report_of_an_older_generation_changes_nothing(tmp_path):
    ledger = open_ledger(tmp_path)
    start_workers(ledger)
    account = RankAccount(rank=0, spawned_at=1.0)
    draft = take(ledger, MarksReported(at=102.0, node="n0", generation=-1, accounts=(account,)), "n0", 2)
    assert draft.is_stale
    assert ledger.journal.seq == 4
    ledger.close()


def test_drafts_of_one_batch_build_on_each_other(tmp_path):
    ledger = open_ledger(tmp_path)
    join = ledger.draft(NodeJoined(at=101.0, node="n0", host="h", pid=1), at=101.0, after=[])
    store = ledger.draft(StoreOpened(at=101.0, generation=0, host="h", port=1), at=101.0, after=[join])
    assert store.state.generation == 0
    assert ledger.state.generation == -1
    ledger.commit([join, store])
    assert ledger.state.generation == 0
    ledger.close()


def test_a_time_that_cannot_be_written_is_refused_and_nothing_is_decided(tmp_path):
    ledger = open_ledger(tmp_path)
    before = ledger.state
    draft = ledger.draft(NodeJoined(at=math.nan, node="n0", host="h", pid=1), at=101.0, after=[])
    with pytest.raises(ValueError, match="cannot be written"):
        ledger.commit([draft])
    assert ledger.state is before
    take(ledger, NodeJoined(at=101.0, node="n0", host="h", pid=1))
    ledger.close()


def test_an_unfinished_run_is_reopened_once_per_attempt(tmp_path):
    open_ledger(tmp_path).close()
    again = msgspec.structs.replace(WANTED, attempt=2)
    open_ledger(tmp_path, again, at=200.0).close()
    third = open_ledger(tmp_path, again, at=201.0)
    assert third.state.attempt == 2
    third.close()
    events = [entry.event for entry in read_journal(tmp_path / "journal.jsonl").entries]
    assert sum(isinstance(event, RunReopened) for event in events) == 1
    assert [event.took_over for event in events if isinstance(event, ControllerStarted)] == [False, False, True]


def test_nothing_is_written_behind_the_end(tmp_path):
    ledger = open_ledger(tmp_path)
    take(ledger, StopRequested(at=101.0, why="SIGTERM", signal=15))
    assert ledger.state.phase is Phase.OVER
    ledger.close()
    open_ledger(tmp_path, at=200.0).close()
    last = read_journal(tmp_path / "journal.jsonl").entries[-1]
    assert any(isinstance(action, Finish) for action in last.actions)


def test_the_policy_of_the_journal_counts(tmp_path):
    open_ledger(tmp_path).close()
    other = msgspec.structs.replace(WANTED, policy=Policy(max_restarts=99))
    ledger = open_ledger(tmp_path, other, at=200.0)
    assert ledger.policy == WANTED.policy
    ledger.close()


def test_two_crashes_on_the_same_input_make_it_poison(tmp_path):
    Poison(tmp_path).crashed("n0:5", "KeyError")
    assert Poison(tmp_path).known() is None
    Poison(tmp_path).crashed("n0:5", "KeyError")
    assert Poison(tmp_path).known() == ("n0:5", "KeyError")


def test_crashes_on_different_inputs_are_no_poison(tmp_path):
    for key in ("n0:5", "n0:6", "n0:5"):
        Poison(tmp_path).crashed(key, "KeyError")
    assert Poison(tmp_path).known() is None


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff"])
def test_a_damaged_note_is_no_note(tmp_path, damage):
    (tmp_path / "controller.crash.json").write_bytes(damage)
    assert Poison(tmp_path).known() is None
