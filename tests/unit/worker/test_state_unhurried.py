"""Snapshots that are copied while the next step runs: what is waited for, what is torn, what a request completes."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from test_state import Agent, Thing
from unhurried import Gate, answer, begin, gate_before_copies, held, step_once, unhurried_agent

import everstep
from everstep.worker.link import watch
from everstep.worker.link.runtime import current
from everstep.worker.snapshots import cadence, copying
from everstep.worker.snapshots import snapshots as keeper


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch):
    yield from unhurried_agent(monkeypatch)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch):
    yield from gate_before_copies(monkeypatch)


def test_a_step_is_published_while_the_next_one_runs_and_the_optimizer_waits(agent: Agent, gate: Gate) -> None:
    _, model, optimizer, state = begin(agent)
    order = []
    for step in state.steps(4):
        if step == 2:
            assert gate.reached.wait(60)
            assert held(agent) == (0,)  # of step 1 everything is there but for the copy
            threading.Timer(0.05, lambda: (order.append("copied"), gate.is_open.set())).start()
            step_once(model, optimizer)
            order.append("stepped")
        else:
            step_once(model, optimizer)
        if step == 1:
            gate.close()  # step 0 has been copied: its copy was waited for
    assert order == ["copied", "stepped"]
    assert held(agent)[-2:] == (2, 3)
    assert agent.published() == 3
    assert agent.faults() == []


def test_what_was_copied_meanwhile_is_the_state_after_that_step(agent: Agent) -> None:
    _, model, optimizer, state = begin(agent)
    after = {}
    for step in state.steps(6):
        step_once(model, optimizer)
        after[step] = (model.weight.detach().clone(), optimizer.state[model.weight]["exp_avg"].clone())
    assert held(agent) == (0, 1, 2, 3, 4, 5)
    for step in held(agent):
        kept = [os.dup(fd) for fd in agent.arenas]
        before, agent.arenas = agent.arenas, [whole_copy(fd) for fd in kept]
        _, model, optimizer, state = begin(agent, resume_step=step, generation=1)
        assert state.step == step
        assert torch.equal(model.weight, after[step][0])
        assert torch.equal(optimizer.state[model.weight]["exp_avg"], after[step][1])
        for fd in [*kept, *agent.arenas]:
            os.close(fd)
        agent.arenas = before


def whole_copy(fd: int) -> int:
    copy = os.memfd_create("copy")
    os.write(copy, os.pread(fd, os.fstat(fd).st_size, 0))
    return copy


def test_buffers_are_those_of_the_step_although_the_next_one_changes_them(agent: Agent, gate: Gate) -> None:
    now = agent.runtime()
    now.snapshot_buffers = 5
    model = torch.nn.BatchNorm1d(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = everstep.State(model=model, optimizer=optimizer)
    for step in state.steps(3):
        model(torch.full((3, 4), float(step + 1))).sum().backward()
        if step == 2:
            gate.is_open.set()  # its forward has changed the buffers, and the copy of step 1 is still to come
        optimizer.step()
        if step == 1:
            gate.close()
            mean = model.running_mean.clone()
        if step == 2:
            break
    agent.runtime(resume_step=1, generation=1)
    model = torch.nn.BatchNorm1d(4)
    everstep.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert torch.equal(model.running_mean, mean)


@pytest.mark.parametrize("how", ["in place", "behind torch's back"])
def test_a_torn_copy_is_never_kept_and_training_waits_from_then_on(
    agent: Agent, gate: Gate, capfd: pytest.CaptureFixture, how: str
) -> None:
    _, model, optimizer, state = begin(agent)
    for step in state.steps(4):
        if step == 2:
            assert gate.reached.wait(60)
            if how == "in place":
                with torch.no_grad():
                    model.weight.add_(1)
            job = state._snapshots._copier.job
            job.is_to_compare = how == "behind torch's back"  # no count shows it; the first copies are compared
            gate.is_open.set()
            if job.is_to_compare:
                assert not state._snapshots._copier.finish(job, time.monotonic() + 60)
                assert job.is_withheld
                model.weight.data.add_(1)
        step_once(model, optimizer)
        if step == 2:
            assert 1 not in held(agent)
        if step == 1:
            gate.close()
    assert held(agent)[-2:] == (2, 3)
    assert state._snapshots._is_hurried
    wait_for_a_fault(agent)
    assert "outside of an optimizer's step" in capfd.readouterr().err
    assert [fault["where"] for fault in agent.faults()] == ["state: torn"]


class Broken:
    """In the place of stderr."""

    def write(self, text: str) -> int:
        raise ValueError("I/O operation on closed file")

    flush = write


def test_a_program_that_has_closed_its_stderr_trains_on_after_a_torn_copy(
    agent: Agent, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody can read stops neither the thread that copies nor the optimizer's step."""
    _, model, optimizer, state = begin(agent)
    monkeypatch.setattr(sys, "stderr", Broken())
    for step in state.steps(4):
        if step == 2:
            assert gate.reached.wait(60)
            with torch.no_grad():
                model.weight.add_(1)
            thread = state._snapshots._copier._thread
            gate.is_open.set()
        step_once(model, optimizer)
        if step == 1:
            gate.close()
    assert held(agent)[-2:] == (2, 3)
    assert state._snapshots._copier._thread is thread
    assert thread.is_alive()
    wait_for_a_fault(agent)
    assert [fault["where"] for fault in agent.faults()] == ["state: torn"]


def wait_for_a_fault(agent: Agent) -> None:
    """The thread that copies tells of a torn copy after it has let the program go on."""
    deadline = time.monotonic() + 60
    while not any("fault" in frame for frame in agent.heard):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_first_copy_that_is_torn_behind_torchs_back_is_never_visible(agent: Agent, gate: Gate) -> None:
    now, model, optimizer, state = begin(agent)
    for step in state.steps(3):
        if step == 1:
            good = model.weight.detach().clone()
            model.weight.data.zero_()  # a forward with other weights, which are put back
            gate.is_open.set()
            assert answer(now, 60.0)[0] is None  # at once: nobody is going to compare it meanwhile
            model.weight.data.copy_(good)
            assert (held(agent), agent.published()) == ((), -1)
        step_once(model, optimizer)
        if step == 0:
            gate.close()
        if step == 1:
            assert answer(now, 60.0) == (None, f"step 0 was not kept: {copying.TORN}")
            assert (held(agent), agent.published()) == ((), -1)
    assert (held(agent), agent.published()) == ((1, 2), 2)


def test_a_first_copy_is_kept_at_the_optimizer_or_with_the_next_step(agent: Agent) -> None:
    now, model, optimizer, state = begin(agent)
    steps = state.steps(2)
    next(steps)
    step_once(model, optimizer)
    next(steps)

    def is_refused_at_once() -> bool:
        began = time.monotonic()
        step, why = answer(now, 60.0)
        assert (step, held(agent)) == (None, ())
        assert "once it was compared" in why
        return time.monotonic() - began < 5.0

    assert any(is_refused_at_once() for _ in range(3))
    optimizer.step()
    assert answer(now, 60.0) == (0, "")
    assert (held(agent), agent.published()) == ((0,), 0)
    steps.close()


def test_a_step_without_an_optimizer_is_copied_at_once(agent: Agent, gate: Gate) -> None:
    _, model, optimizer, state = begin(agent)
    for step in state.steps(3):
        if step == 0:
            step_once(model, optimizer)
        elif step == 1:
            state._snapshots._copier.settle()
            gate.close()  # nobody is let through any more: nothing may need it
    gate.is_open.set()
    assert held(agent) == (0, 1, 2)


def test_a_request_completes_a_copy_that_was_only_made_ready(
    agent: Agent, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, model, optimizer, state = begin(agent)
    steps = state.steps(9)
    next(steps)
    step_once(model, optimizer)
    next(steps)
    state._snapshots._cadence.every = 4  # steps 3, 7, ...
    step_once(model, optimizer)
    next(steps)
    assert now.save_now is not None
    assert held(agent) == (0,)
    assert answer(now, 60.0) == (1, "")  # in the middle of step 2, before its optimizer
    assert held(agent) == (0, 1)
    assert answer(now, 60.0) == (1, "")
    step_once(model, optimizer)
    step, why = answer(now, 60.0)  # its optimizer has stepped: the state after step 1 is there
    assert (step, why) == (1, "")
    next(steps)
    step_once(model, optimizer)
    step, why = answer(now, 60.0)
    assert step is None
    assert "step 2 was not kept: an optimizer's step has begun since" in why
    assert held(agent) == (0, 1)
    next(steps)
    assert answer(now, 60.0) == (3, "")
    gate.close()


def test_what_is_felt_at_once_is_not_made_ready_in_vain(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "FELT_BYTES", 1000)
    now = agent.runtime()
    now.snapshot_buffers = 5
    model = torch.nn.Linear(50, 50)
    optimizer = torch.optim.SGD(model.parameters())
    state = everstep.State(model=model, optimizer=optimizer, average=Thing(torch.ones(5000)))
    shares = []
    monkeypatch.setattr(cadence.Cadence, "waited", lambda self, seconds, step, now: shares.append(seconds))
    for step in state.steps(4):
        step_once(model, optimizer)
        if step == 2:
            assert shares[-1] >= state._snapshots._job.at_once_s > 0
            state._snapshots._cadence.every = 64
    assert held(agent) == (0, 1)
    assert answer(now, 1.0) == (None, "step 3 was not kept: it could not be taken")


def test_a_request_whose_copy_does_not_end_says_so_and_costs_no_good_snapshot(agent: Agent, gate: Gate) -> None:
    now, model, optimizer, state = begin(agent)
    steps = state.steps(9)
    next(steps)
    step_once(model, optimizer)
    next(steps)
    step_once(model, optimizer)
    gate.close()
    next(steps)
    step, why = answer(now, 0.05)
    assert step is None
    assert "not over in time" in why
    assert held(agent) == (0,)
    gate.is_open.set()
    assert answer(now, 60.0) == (1, "")


def test_an_exception_in_the_copy_is_said_once_and_training_goes_on(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    def broken(*_):
        raise RuntimeError("out of luck")

    _, model, optimizer, state = begin(agent)
    for step in state.steps(5):
        step_once(model, optimizer)
        if step == 1:
            monkeypatch.setattr(copying, "_copy_in_chunks", broken)
    assert held(agent) == (0,)
    assert capfd.readouterr().err.count("no snapshot of step 1: RuntimeError: out of luck") == 1
    assert [fault["where"] for fault in agent.faults()] == ["state: snapshot"]


def test_the_pace_counts_steps_and_its_changes_are_said(agent: Agent, capfd: pytest.CaptureFixture) -> None:
    _, model, optimizer, state = begin(agent)
    state.begin()
    for step in range(0, 160, 10):
        step_once(model, optimizer)
        state.complete_step(step)
        if step == 30:
            pace = state._snapshots._cadence
            pace._waits.extend([0.03] * cadence.NUM_WAITS)
            pace._next = (4, 6)  # from the seventh step on
        if step > 30:
            pace._num_first = 1000  # measures nothing: the pace stays
    state.finish()
    assert held(agent)[-2:] == (110, 150)
    said = capfd.readouterr().err
    assert (
        said.count("from step 60 on one of 4 steps is kept in memory (this rank's optimizers waited for 3.0% of") == 1
    )
    assert len(agent.faults()) == 1


def test_sync_is_for_programs_that_write_behind_torchs_back(
    agent: Agent, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(keeper.MODE_VARIABLE, "sync")
    _, model, optimizer, state = begin(agent)
    gate.close()
    for step in state.steps(3):
        step_once(model, optimizer)
        if step:
            assert agent.published() == step - 1
    gate.is_open.set()


ENDS = """
import atexit, os, sys, threading
import torch
sys.path.insert(0, sys.argv[1])
import test_state
import everstep
from everstep.checkpoint import arena
from everstep.worker.snapshots import copying, snapshots

torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
atexit.register(lambda: print(arena.held_steps(kept), flush=True))  # after what is registered later
snapshots.SMALL_BYTES = -1
agent = test_state.Agent()
now = agent.runtime()
now.snapshot_buffers = 5
model = torch.nn.Linear(500, 500)
optimizer = torch.optim.AdamW(model.parameters())
state = everstep.State(model=model, optimizer=optimizer)
copy = copying._copy_in_chunks
begun, slowly = threading.Event(), threading.Event()
def gated(places, tensors):
    begun.set()
    slowly.wait(0.3)
    copy(places, tensors)
for step in state.steps(5):
    if step == 2:
        kept = os.dup(agent.arenas[-1])
        assert begun.wait(60)
        if sys.argv[2] == "fork":
            pid = os.fork()
            if pid == 0:
                optimizer.step()  # in a child nobody copies, and nothing is waited for
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        else:
            agent.close()  # or its thread would hold up the end
            sys.exit(3)
    model(torch.ones(1, 500)).sum().backward()
    optimizer.step()
    if step == 1:
        begun.clear()
        copying._copy_in_chunks = gated
agent.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "held", "code"), [("fork", "(0, 1, 2, 3, 4)", 0), ("exit", "(0, 1)", 3)])
def test_a_fork_and_the_end_of_the_program_in_the_middle_of_a_copy(how: str, held: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS, str(Path(__file__).parent), how],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == held, done.stderr
    assert done.returncode == code, done.stderr


def test_the_watch_thread_answers_a_request_to_save(agent: Agent) -> None:
    now, model, optimizer, state = begin(agent)
    assert watch._answer({"do": "save", "id": 1, "limit_s": 60.0}, current()) == {
        "saved": 1,
        "why": "no step is complete",
    }
    steps = state.steps(3)
    next(steps)
    step_once(model, optimizer)
    next(steps)
    optimizer.step()
    assert watch._answer({"do": "save", "id": 2, "limit_s": 60.0}, current()) == {"saved": 2, "step": 0}
    now.save_now = None
    assert watch._answer({"do": "save", "id": 3, "limit_s": 60.0}, current())["why"] == "this rank keeps no snapshots"
