"""`everstep.busy`: what the program says, what the agent reads of it, and what it does not hide."""

import math
import time

import pytest

import everstep
from everstep.agent.memory.board import Board
from everstep.analyzer.hangs.hang import judge
from everstep.analyzer.hangs.signals import RankSample, Rhythm
from everstep.model.facts import RankNote
from everstep.worker import api
from everstep.worker.process.board import WHY, Activity, BoardLine, IntCell
from everstep.worker.process.phases import Phases, Reason

FAST = Rhythm(step_s=(0.1,) * 60)


class Runtime:
    def __init__(self, board: Board) -> None:
        self.phases = Phases(BoardLine(board.fd, 0))
        self.faults: list[str] = []

    def report_fault(self, where: str, why: str) -> None:
        self.faults.append(f"{where}: {why}")


@pytest.fixture
def board():
    made = Board(2)
    made.reset(0, rank=0, generation=0)
    made.reset(1, rank=1, generation=0)
    yield made
    made.close()


@pytest.fixture
def runtime(board, monkeypatch):
    made = Runtime(board)
    monkeypatch.setattr(api, "current", lambda: made)
    return made


def says(board: Board) -> str | None:
    note = board.note(0)
    return None if note is None else note.says


def test_the_agent_reads_why_and_since_when(board, runtime):
    before = time.time()
    with everstep.busy("uploading"):
        note = board.note(0)
        assert note is not None
        assert (note.kind, note.says) == ("busy", "uploading")
        assert before <= note.since <= time.time()
        assert board.is_busy(0, time.time() + 1e6)
        assert board.note(1) is None
    assert board.note(0) is None
    assert not board.is_busy(0, time.time())


def test_the_innermost_is_said_and_the_outer_one_again_afterwards(board, runtime):
    with everstep.busy("outer"):
        outer = board.note(0)
        with everstep.busy("inner"):
            assert says(board) == "inner"
            with everstep.phase("evaluation"):
                assert says(board) is None
            assert says(board) == "inner"
        assert board.note(0) == outer


def test_after_its_own_limit_it_is_judged_again(board, runtime):
    with everstep.busy("uploading", limit_s=60):
        now = time.time()
        assert board.is_busy(0, now + 59)
        assert not board.is_busy(0, now + 61)
        assert says(board) == "uploading"  # it says so all the same


@pytest.mark.parametrize(
    ("why", "shown"),
    [("", ""), (7, "7"), ("a\x1b[2Jb\nc", "a [2Jb c"), ("ä" * 500, "ä" * 96), (b"x", "b'x'")],
)
def test_whatever_is_said_can_be_shown(board, runtime, why, shown):
    with everstep.busy(why):
        assert says(board) == shown
    assert runtime.faults == []


class Refuses:
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(("why", "limit_s"), [(Refuses(), None), ("x", "soon")])
def test_what_cannot_be_said_is_reported_and_raises_nothing(board, runtime, why, limit_s):
    with everstep.busy(why, limit_s):
        assert board.activity(0) == Activity.BUSY
    assert board.activity(0) == Activity.TRAIN
    assert len(runtime.faults) == 1


def test_a_lie_on_the_board_reaches_no_other_line(board):
    line = BoardLine(board.fd, 0)
    line.set_busy(b"x", time.time(), math.nan)
    line.set_activity(Activity.BUSY, time.time())
    for length in (-5, 10**9):
        line._ints[IntCell.WHY_BYTES] = length
        note = board.note(0)
        assert note is not None
        assert len(note.says) <= WHY.stop - WHY.start
    line._floats[34] = time.time() + 1e9  # since a time to come: unknown
    assert board.note(0) is None


def test_a_new_rank_on_the_line_says_nothing(board):
    line = BoardLine(board.fd, 0)
    phases = Phases(line)
    phases.enter(Activity.BUSY, Reason(b"uploading", math.nan))
    line.set_over(time.time(), finished=True)
    board.reset(0, rank=0, generation=1)
    assert (board.note(0), board.over_at(0)) == (None, None)


def test_a_program_that_is_over_is_noted(board):
    at = time.time()
    BoardLine(board.fd, 0).set_over(at, finished=True)
    assert board.note(0) == RankNote(kind="ending", since=at)


def test_who_says_that_it_is_busy_is_not_hung_nor_who_waits_for_it():
    busy = RankSample(rank=0, log_s=90, stack_s=90, device_s=90, communication_s=90, busy="says that it is busy: up")
    waits = RankSample(rank=1, log_s=90, stack_s=90, device_s=90, communication_s=90)
    verdict = judge([busy, waits], FAST)
    assert not verdict.hung
    assert "rank 0 says that it is busy: up" in verdict.why
    assert judge([RankSample(rank=0, log_s=90, stack_s=90), waits], FAST).hung


def test_outside_of_a_run_nothing_happens():
    with everstep.busy("uploading"):
        pass
