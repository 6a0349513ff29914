"""The runtime in a rank: marks, memory, fault reports, the hooks that count steps."""

import os
import socket
import sys
import threading
import types

import pytest

from everstep.agent.memory.board import Board
from everstep.wire import local
from everstep.worker.hooks import hooks
from everstep.worker.link import assignment, runtime
from everstep.worker.process.board import BoardLine


@pytest.fixture
def worker():
    """A runtime as a worker has it, with the agent's end of its link."""
    board = Board(1)
    board.reset(0, rank=0, generation=1)
    agent, link = socket.socketpair()
    agent.settimeout(60)
    frame = {"rank": 0, "local_rank": 0, "world_size": 1, "generation": 1, "resume_step": None}
    made = runtime.Runtime(link, frame, BoardLine(board.fd, 0), [])
    yield types.SimpleNamespace(runtime=made, agent=agent, board=board)
    agent.close()
    link.close()
    board.close()


def test_marks_ring_once(worker):
    worker.runtime.mark("entered")
    worker.runtime.mark("entered")
    worker.runtime.mark("rendezvous_begun")
    assert [local.recv(worker.agent)[0] for _ in range(2)] == [{"mark": "entered"}, {"mark": "rendezvous_begun"}]
    assert worker.board.account(0).entered_at is not None


@pytest.mark.parametrize("is_known", [False, True])
def test_modules_are_told_once_in_a_run(worker, is_known):
    worker.runtime.process = types.SimpleNamespace(known=frozenset(), env_when_parked=dict(os.environ), parked_at=0.0)
    worker.runtime.are_modules_known = is_known
    worker.runtime.step_done(0)
    worker.runtime.mark("entered")
    told = []
    while told[-1:] != [{"mark": "entered"}]:
        told.append(local.recv(worker.agent)[0])
    modules = [] if is_known else [["modules", "changed", "took_s"]]
    assert [list(frame) for frame in told] == [["mark"], *modules, ["mark"]]


def test_nothing_waits_for_an_agent_that_does_not_read(worker):
    for _ in range(20_000):
        worker.runtime._rung.clear()
        worker.runtime.mark("entered")
    assert worker.board.num_faults(0) > 0, "doorbells that did not fit are counted"


def test_a_lost_agent_is_no_trouble(worker):
    worker.agent.close()
    worker.runtime.mark("entered")
    worker.runtime.report_fault("here", "why")
    worker.runtime.step_done(0)
    with pytest.raises(runtime.ArenaRefused):
        worker.runtime.request_arena(4096)


def test_arena_answers(worker):
    fd = os.open(os.devnull, os.O_RDONLY)
    local.send(worker.agent, {"memory": "granted", "bytes": 1}, (fd,))
    os.close(fd)
    os.close(worker.runtime.request_arena(1))
    local.send(worker.agent, {"memory": "refused", "why": "full", "free_bytes": 3})
    with pytest.raises(runtime.ArenaRefused) as refused:
        worker.runtime.request_arena(1)
    assert (refused.value.why, refused.value.free_bytes) == ("full", 3)


def test_memory_that_comes_late_costs_that_question_only(worker, monkeypatch):
    monkeypatch.setattr(runtime, "_ARENA_TIMEOUT_S", 0.05)
    with pytest.raises(runtime.ArenaRefused, match="did not answer within"):
        worker.runtime.request_arena(1)
    fd = os.open(os.devnull, os.O_RDONLY)

    def answer() -> None:
        for num_bytes in (1, 2):
            local.send(worker.agent, {"memory": "granted", "bytes": num_bytes}, (fd,))

    late = threading.Timer(0.3, answer)  # far above the limit
    late.start()
    os.close(worker.runtime.request_arena(2, is_patient=True))
    late.join()
    os.close(fd)


def test_fault_reports_are_limited_and_counted(worker):
    for _ in range(50):
        worker.runtime.report_fault("hook", "x" * 10_000)
    worker.agent.settimeout(0.05)
    received = [local.recv(worker.agent)[0] for _ in range(runtime.MAX_FAULT_REPORTS)]
    with pytest.raises(TimeoutError):
        local.recv(worker.agent)
    assert len(received[0]["fault"]["why"]) == 2000
    assert worker.board.num_faults(0) == 50


def test_a_child_of_the_rank_has_no_runtime(worker, monkeypatch):
    monkeypatch.setattr(runtime, "_current", worker.runtime)
    assert runtime.current() is worker.runtime
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert runtime.current() is None


class Optimizer:
    pass


def test_steps_of_one_optimizer_are_counted(worker):
    counter = hooks.StepCounter(worker.runtime)
    generator, discriminator = Optimizer(), Optimizer()
    for _ in range(3):
        counter(generator, (), {})
        counter(discriminator, (), {})
    assert (worker.board.account(0).first_step, worker.board.account(0).last_step) == (0, 2)
    del generator
    counter(discriminator, (), {})
    assert worker.board.account(0).last_step == 3
    worker.runtime.own_steps()
    counter(discriminator, (), {})
    assert worker.board.account(0).last_step is None


def test_a_failing_hook_is_swallowed_and_told(worker, monkeypatch):
    monkeypatch.setattr(worker.runtime, "step_done", lambda _step: 1 / 0)
    hooks.StepCounter(worker.runtime)(Optimizer(), (), {})
    assert "ZeroDivisionError" in local.recv(worker.agent)[0]["fault"]["why"]


def test_hooks_wait_for_torch_without_importing_it(worker, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name == "torch" or name.startswith("torch.")]:
        monkeypatch.delitem(sys.modules, name)
    package = tmp_path / "torch" / "optim"
    package.mkdir(parents=True)
    (tmp_path / "torch/__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "optimizer.py").write_text(
        "hooks = []\nregister_optimizer_step_post_hook = hooks.append\n"
        "register_optimizer_step_pre_hook = hooks.append\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = list(sys.meta_path)
    try:
        hooks.install(worker.runtime)
        assert "torch" not in sys.modules
        module = __import__("torch.optim.optimizer", fromlist=["hooks"])
        assert len(module.hooks) == 2
        assert module.__loader__.get_source("torch.optim.optimizer").startswith("hooks = []")
    finally:
        sys.meta_path[:] = finders
        for name in [name for name in sys.modules if name == "torch" or name.startswith("torch.")]:
            del sys.modules[name]


def test_a_frame_that_is_no_assignment_says_so():
    for frame in ({}, {"rank": "x"}, {"do": "assign", "rank": None}):
        with pytest.raises(assignment.AssignmentError):
            assignment.parse(frame)
