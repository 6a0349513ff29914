"""Where unhurried snapshots go: memory that is scarce or slow in coming, buffers, and the seals behind them."""

import os
import threading

import pytest
from test_state import Agent, Thing, train
from unhurried import begin, held, step_once, unhurried_agent

import everstep
from everstep.checkpoint import arena
from everstep.errors import SnapshotError
from everstep.worker.link import runtime
from everstep.worker.snapshots import snapshots as keeper


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch):
    yield from unhurried_agent(monkeypatch)


def test_a_long_time_without_a_buffer_is_said_once(agent: Agent, capfd: pytest.CaptureFixture) -> None:
    _, model, optimizer, state = begin(agent, num_buffers=3)
    for step in state.steps(80):
        step_once(model, optimizer)
        if step == 4:
            arena.pin(agent.arenas[0], arena.PIN_TRUSTED, 2)
            arena.pin(agent.arenas[0], arena.PIN_SPARE, 1)
    assert held(agent) == (1, 2, 3)
    assert capfd.readouterr().err.count("all 3 buffers hold steps that must stay (of use to others: [1, 2])") == 1
    assert [fault["where"] for fault in agent.faults()] == ["state: buffers"]


def test_scarce_memory_gives_two_buffers_and_says_what_that_means(agent: Agent, capfd: pytest.CaptureFixture) -> None:
    now, model, optimizer, state = begin(agent)
    request = now.request_arena
    sizes = []

    def scarce(num_bytes: int, **_) -> int:
        sizes.append(num_bytes)
        if len(sizes) == 1:
            raise runtime.ArenaRefused("too much", 3 << 20)
        return request(num_bytes)

    now.request_arena = scarce
    for _ in state.steps(3):
        step_once(model, optimizer)
    assert sizes[0] > 2 * sizes[1]
    assert held(agent) == (1, 2)
    assert arena.inspect(agent.arenas[0]).num_buffers == 2
    said = capfd.readouterr().err
    assert "two copies of the state instead of 6" in said
    assert "training waits for each snapshot" in said


def test_large_memory_is_made_on_a_thread_and_steps_go_on(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    from everstep.worker.snapshots.memory import space

    monkeypatch.setattr(space, "ASK_APART_BYTES", 0)
    now, model, optimizer, state = begin(agent)
    may_answer = threading.Event()
    request = now.request_arena

    def slow(num_bytes: int, *, is_patient: bool) -> int:
        assert is_patient
        assert may_answer.wait(20)
        return request(num_bytes)

    now.request_arena = slow
    for step in state.steps(4):
        step_once(model, optimizer)
        if step == 1:
            assert agent.arenas == []
            may_answer.set()
            state._snapshots._space._asking.join(60)
    assert held(agent) == (1, 2, 3)


def test_a_damaged_seal_is_told_before_the_rank_raises(agent: Agent) -> None:
    _, model, optimizer, state = begin(agent)
    for _ in state.steps(3):
        step_once(model, optimizer)
    state._snapshots._copier.end()
    snapshot = arena.inspect(agent.arenas[0]).snapshots[-1]
    begin_of = arena.offset_of(arena.inspect(agent.arenas[0]), snapshot.buffer)
    if not snapshot.sealed:  # the thread had something else to do: sealed now
        memory = arena.Arena(agent.arenas[0])
        assert memory.seal(snapshot)
        memory.close()
    byte = os.pread(agent.arenas[0], 1, begin_of + 100)
    os.pwrite(agent.arenas[0], bytes([byte[0] ^ 4]), begin_of + 100)
    agent.runtime(resume_step=2, generation=1)
    with pytest.raises(SnapshotError, match=r"step 2 on rank 0 is damaged: bytes 0 to"):
        everstep.State(model=model, optimizer=optimizer)
    agent.faults()
    told = [frame["restore_failed"] for frame in agent.heard if "restore_failed" in frame]
    assert [(one["step"], one["source"], one["where"]) for one in told] == [(2, "memory", "")]
    assert "bytes 0 to" in told[0]["why"]


def test_a_snapshot_that_was_not_sealed_is_restored_and_that_is_said(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(arena.Arena, "seal", lambda *_: False)
    _, model, optimizer, state = begin(agent)
    for _ in state.steps(3):
        step_once(model, optimizer)
    assert not any(snapshot.sealed for snapshot in arena.inspect(agent.arenas[0]).snapshots)
    capfd.readouterr()
    *_, state = begin(agent, resume_step=2, generation=1)
    assert state.step == 2
    assert "resumes after step 2 with a snapshot that was not sealed yet" in capfd.readouterr().err


def test_a_small_snapshot_is_sealed_at_once(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "SMALL_BYTES", 16 << 20)
    agent.runtime()
    thing = Thing()
    train(everstep.State(thing=thing), thing, 3)
    assert [snapshot.sealed for snapshot in arena.inspect(agent.arenas[0]).snapshots] == [True, True]
