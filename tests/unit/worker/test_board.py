"""The progress board: what a worker stores is what the agent reads, at any moment."""

import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.agent.memory.board import Board
from everstep.model.facts import RankAccount
from everstep.worker.process.board import LINE_BYTES, MARKS, BoardLine, FloatCell, IntCell, Phase


@pytest.fixture
def board():
    made = Board(3)
    yield made
    made.close()


def test_a_fresh_line_knows_nothing(board):
    board.reset(1, rank=5, generation=2, spawned_at=10.0)
    assert board.account(1) == RankAccount(rank=5, spawned_at=10.0)
    assert (board.phase(1), board.num_faults(1)) == (Phase.NONE, 0)


def test_every_setter_is_seen(board):
    board.reset(1, rank=5, generation=2, spawned_at=10.0)
    line = BoardLine(board.fd, 1)
    line.set_pid(77)
    assert board.phase(1) == Phase.STARTING
    for at, mark in enumerate(("entered", "rendezvous_begun", "rendezvous_done"), start=11):
        assert line.set_mark(mark, float(at))
        assert not line.set_mark(mark, 99.0), "a milestone is reached once"
    line.add_restore_s(0.5)
    line.set_counts_own_steps()
    line.set_loop_at(14.0)
    line.set_loop_at(99.0)
    assert line.step_done(40, 15.0)
    assert not line.step_done(41, 16.0)
    line.add_stall_s(0.25)
    line.add_stall_s(0.25)
    line.set_published_step(41)
    assert line.count_fault() == 1
    assert board.account(1, ended_at=17.0) == RankAccount(
        rank=5,
        spawned_at=10.0,
        entered_at=11.0,
        rendezvous_begun_at=12.0,
        rendezvous_done_at=13.0,
        restore_s=0.5,
        loop_at=14.0,
        first_step=40,
        last_step=41,
        first_step_at=15.0,
        last_step_at=16.0,
        stall_s=0.5,
        published_step=41,
        ended_at=17.0,
        counts_own_steps=True,
    )
    assert board.num_faults(1) == 1


def test_own_steps_take_back_what_the_hook_counted(board):
    board.reset(0, rank=0, generation=0)
    line = BoardLine(board.fd, 0)
    line.step_done(0, 1.0)
    line.set_counts_own_steps()
    assert board.account(0).first_step is None
    assert line.step_done(700, 2.0)
    line.set_counts_own_steps()
    assert (board.account(0).first_step, board.account(0).first_step_at) == (700, 2.0)


@given(steps=st.lists(st.integers(0, 2**62), min_size=1, max_size=20), line=st.integers(0, 2))
def test_lines_do_not_touch_each_other(steps, line):
    board = Board(3)
    try:
        for number in range(3):
            board.reset(number, rank=number, generation=0, spawned_at=1.0)
        before = [board.account(number) for number in range(3)]
        mine = BoardLine(board.fd, line)
        for step in steps:
            mine.step_done(step, 2.0)
        for number in range(3):
            account = board.account(number)
            if number == line:
                assert (account.first_step, account.last_step) == (steps[0], steps[-1])
            else:
                assert account == before[number]
    finally:
        board.close()


def test_cells_fit_on_the_line_and_do_not_overlap():
    cells = [int(cell) for cell in (*IntCell, *FloatCell)]
    assert len(set(cells)) == len(cells)
    assert max(cells) < LINE_BYTES // 8
    assert {cell for cell, _ in MARKS.values()} <= {int(cell) for cell in FloatCell}


def test_a_killed_writer_leaves_a_readable_line(board):
    """Killed between any two stores: the step is known only if its time is."""
    for _ in range(20):
        board.reset(0, rank=0, generation=0)
        pid = os.fork()
        if pid == 0:
            line = BoardLine(board.fd, 0)
            for step in range(1 << 40):
                line.step_done(step, float(step))
        deadline = time.monotonic() + 60
        while board.account(0).last_step is None and time.monotonic() < deadline:
            pass
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        account = board.account(0)
        assert account.first_step == 0
        assert account.last_step <= account.last_step_at <= account.last_step + 1


def test_a_setter_is_cheap(board):
    """One thousandth of a percent of a 100 ms step. A wide bound: this is not a benchmark, it catches a system call."""
    board.reset(0, rank=0, generation=0)
    line = BoardLine(board.fd, 0)
    best = min(_time_of(line) for _ in range(5))
    assert best < 10e-6


def _time_of(line: BoardLine) -> float:
    began = time.perf_counter()
    for step in range(1000):
        line.step_done(step, 1.0)
    return (time.perf_counter() - began) / 1000
