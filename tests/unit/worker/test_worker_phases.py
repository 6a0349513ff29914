"""Activities of a rank: nesting, habits, other threads, children."""

import os
import socket
import threading

import pytest

import everstep
from everstep.agent.memory.board import Board
from everstep.worker.hooks.phase_hooks import MAX_PARTS, size_of
from everstep.worker.process.board import Activity, BoardLine
from everstep.worker.process.phases import HABIT, Phases


@pytest.fixture
def board():
    made = Board(1)
    made.reset(0, rank=0, generation=0)
    yield made
    made.close()


@pytest.fixture
def phases(board):
    return Phases(BoardLine(board.fd, 0))


def test_the_innermost_is_seen_and_durations_are_of_the_outermost(board, phases):
    assert board.durations(0) == (None, None)
    assert phases.enter(Activity.EVALUATION)
    assert phases.enter(Activity.CHECKPOINT)
    assert board.activity(0) == Activity.CHECKPOINT
    assert phases.enter(Activity.CHECKPOINT)
    phases.leave()
    assert board.durations(0)[1] is None, "an inner save is a part of the outer one"
    phases.leave()
    assert board.activity(0) == Activity.EVALUATION
    phases.leave()
    assert board.activity(0) == Activity.TRAIN
    evaluation_s, checkpoint_s = board.durations(0)
    assert evaluation_s is not None
    assert checkpoint_s is not None
    assert evaluation_s >= checkpoint_s >= 0


def test_parts_of_a_step_show_only_in_a_step(board, phases):
    phases.within_step(Activity.DATA)
    assert board.activity(0) == Activity.DATA
    phases.within_step(Activity.TRAIN)
    phases.evaluation_began()
    phases.within_step(Activity.DATA)
    assert board.activity(0) == Activity.EVALUATION
    phases.step_done()
    assert board.activity(0) == Activity.TRAIN


def test_a_step_does_not_end_what_the_program_announced(board, phases):
    phases.enter(Activity.PAUSED)
    phases.step_done()
    assert board.activity(0) == Activity.PAUSED
    phases.leave()
    assert board.activity(0) == Activity.TRAIN


def test_an_evaluation_in_every_step_becomes_a_part_of_it(board, phases):
    for step in range(HABIT + 2):
        phases.evaluation_began()
        expected = Activity.EVALUATION if step < HABIT else Activity.TRAIN
        assert board.activity(0) == expected, step
        phases.step_done()
    phases.step_done()
    phases.evaluation_began()
    assert board.activity(0) == Activity.EVALUATION


def test_another_thread_says_nothing(board, phases):
    def other():
        assert not phases.enter(Activity.CHECKPOINT)
        phases.evaluation_began()
        phases.within_step(Activity.DATA)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert board.activity(0) == Activity.TRAIN


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of fork in a process with threads: the child only stores
def test_a_forked_child_says_nothing(board, phases):
    pid = os.fork()
    if pid == 0:
        entered = phases.enter(Activity.PAUSED)
        phases.evaluation_began()
        os._exit(7 if entered or phases.is_alive else 0)
    assert os.waitpid(pid, 0)[1] == 0
    assert board.activity(0) == Activity.TRAIN
    assert phases.is_alive


def test_loads_are_unknown_until_they_are_measured(board):
    line = BoardLine(board.fd, 0)
    assert board.loads(0) == (None, None, None)
    line.add_gc_s(0.0)
    line.add_work(5)
    line.add_work(2)
    assert board.loads(0) == (None, 0.0, 7.0)


class Sized:
    def __init__(self, count):
        self.count = count

    def numel(self):
        return self.count


def test_the_size_of_a_batch():
    assert size_of(Sized(3)) == 3
    assert size_of({"a": Sized(3), "b": [Sized(4), (Sized(5), "text", None)]}) == 12
    assert size_of("text") == size_of(None) == size_of([]) == 0
    assert size_of([Sized(1)] * 10_000) <= MAX_PARTS
    endless: list[object] = []
    endless.append(endless)
    assert size_of(endless) == 0


def test_outside_of_a_run_nothing_happens():
    everstep.step(loss=1.0, grad_norm=float("nan"), work=3)
    everstep.step()
    with everstep.phase("evaluation"), everstep.paused("why not"):
        pass
    with everstep.phase("lunch"):  # a mistake ends no training either
        pass
    with pytest.raises(ZeroDivisionError), everstep.paused():
        _ = 1 / 0


def test_contexts_nest_in_themselves_and_decorate(board, monkeypatch):
    from everstep.worker.link import runtime

    near, far = socket.socketpair()
    with near, far:
        made = runtime.Runtime(near, ASSIGNMENT, BoardLine(board.fd, 0), [])
        monkeypatch.setattr(runtime, "_current", made)
        seen = []

        @everstep.phase("evaluation")
        def evaluate(depth):
            seen.append(board.activity(0))
            if depth:
                with everstep.paused():
                    seen.append(board.activity(0))
                    evaluate(depth - 1)
            seen.append(board.activity(0))

        evaluate(1)
    evaluation, paused = Activity.EVALUATION, Activity.PAUSED
    assert seen == [evaluation, paused, evaluation, evaluation, evaluation]
    assert board.activity(0) == Activity.TRAIN


ASSIGNMENT = {"rank": 0, "local_rank": 0, "world_size": 1, "generation": 0}
