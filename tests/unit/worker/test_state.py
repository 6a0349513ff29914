"""State against a real Runtime: a link to a thread that plays the agent, a board and arenas in real shared memory."""

import os
import random
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

import everstep
from everstep.checkpoint import arena
from everstep.errors import EverstepError, SnapshotError
from everstep.wire import local
from everstep.worker.link import runtime
from everstep.worker.process import board


class Agent:
    """One rank's agent: answers requests for memory, keeps the arenas, and remembers what was said."""

    def __init__(self) -> None:
        self.arenas: list[int] = []
        self.asked: list[int] = []
        self.heard: list[dict] = []
        self.refuse: str | None = None
        self._ours: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def runtime(self, resume_step: int | None = None, rank: int = 0, world_size: int = 1, generation: int = 0):
        """Begin a generation: from now on this process is that rank."""
        ours, theirs = socket.socketpair()
        fd = os.memfd_create("board")
        os.write(fd, bytes(board.LINE_BYTES))
        line = board.BoardLine(fd, 0)
        os.close(fd)
        for cell in (board.IntCell.FIRST_STEP, board.IntCell.LAST_STEP, board.IntCell.PUBLISHED_STEP):
            line._ints[cell] = -1
        for time_of in board.FloatCell:
            line._floats[time_of] = 0.0 if time_of.name.endswith("_S") else board.NAN
        assignment = {"rank": rank, "local_rank": 0, "world_size": world_size, "generation": generation}
        assignment["resume_step"] = resume_step
        self.now = runtime.Runtime(theirs, assignment, line, [os.dup(fd) for fd in self.arenas])
        runtime.install(self.now)
        self._ours += [ours, theirs]
        self._threads.append(threading.Thread(target=self._serve, args=(ours, rank, world_size)))
        self._threads[-1].start()
        return self.now

    def published(self) -> int:
        return self.now.board._ints[board.IntCell.PUBLISHED_STEP]

    def faults(self) -> list[dict]:
        """What was reported as a fault; closes the link, so that everything sent has been heard."""
        self._ours[-1].shutdown(socket.SHUT_WR)
        self._threads[-1].join(60)
        return [frame["fault"] for frame in self.heard if "fault" in frame]

    def _serve(self, link: socket.socket, rank: int, world_size: int) -> None:
        while (received := local.recv(link)) is not None:
            self.heard.append(received[0])
            if "memory" not in received[0]:
                continue
            num_bytes = received[0]["memory"]["bytes"]
            self.asked.append(num_bytes)
            if self.refuse:
                local.send(link, {"memory": "refused", "why": self.refuse, "free_bytes": 3 << 20})
                continue
            self.arenas.append(arena.create(num_bytes, rank=rank, world_size=world_size))
            self.arenas = self.arenas[-2:]
            local.send(link, {"memory": "granted", "bytes": num_bytes}, (self.arenas[-1],))

    def close(self) -> None:
        for theirs in self._ours[1::2]:
            theirs.shutdown(socket.SHUT_WR)
        for thread in self._threads:
            thread.join(60)
        for link in self._ours:
            link.close()
        for fd in self.arenas:
            os.close(fd)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runtime, "_current", None)
    agent = Agent()
    yield agent
    agent.close()


class Thing:
    """Something with state."""

    def __init__(self, value: object = None) -> None:
        self.value = value

    def state_dict(self):
        return self.value

    def load_state_dict(self, state):
        self.value = state


def train(state: everstep.State, thing: Thing, num_steps: int, stop_after: int | None = None) -> list[int]:
    """Steps that were begun; a step adds its index, and the last may be left undone like a killed one."""
    done = []
    for step in state.steps(num_steps):
        if stop_after is not None and step > stop_after:
            break
        thing.value = [*(thing.value or []), step]
        done.append(step)
    return done


def test_import_of_everstep_does_not_import_torch_nor_state_the_shards() -> None:
    code = "import sys, everstep; assert everstep.__version__; assert 'torch' not in sys.modules; everstep.State"
    code += "; assert 'torch' in sys.modules; assert 'torch.distributed.tensor' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="Checkpointer"):
        _ = everstep.Checkpointer


def test_outside_everstep_it_counts_from_zero(agent: Agent) -> None:
    thing = Thing()
    state = everstep.State(thing=thing)
    assert (state.step, state.resumed) == (-1, False)
    assert train(state, thing, 3) == [0, 1, 2]
    assert state.step == 2
    assert list(state.steps(5)) == [3, 4]
    assert list(state.steps(5)) == []


@pytest.mark.parametrize("thing", [object(), 3, {"a": 1}, lambda: None])
def test_object_without_state_dict_is_named(agent: Agent, thing: object) -> None:
    with pytest.raises(TypeError, match=rf"State\(sampler=...\): .*{type(thing).__name__} has no state_dict"):
        everstep.State(good=Thing(), sampler=thing)


def test_object_that_can_only_be_saved_is_refused(agent: Agent) -> None:
    class OnlySaves:
        def state_dict(self):
            return {}

    with pytest.raises(TypeError, match="OnlySaves has no load_state_dict"):
        everstep.State(x=OnlySaves())


def test_number_of_steps_must_be_a_number(agent: Agent) -> None:
    with pytest.raises(TypeError):
        everstep.State().steps("3")


def test_snapshots_after_each_step_and_account(agent: Agent) -> None:
    thing = Thing()
    now = agent.runtime()
    state = everstep.State(thing=thing)
    for step in state.steps(3):
        assert agent.published() == step - 1
        thing.value = step
    assert agent.published() == 2
    assert arena.held_steps(agent.arenas[-1]) == (1, 2)
    assert (now.board.first_step, now.board.last_step, now.board.counts_own_steps) == (0, 2, True)
    cells = now.board._floats
    assert cells[board.FloatCell.STALL_S] > 0
    assert 0 < cells[board.FloatCell.LOOP_AT] <= cells[board.FloatCell.FIRST_STEP_AT]
    assert cells[board.FloatCell.FIRST_STEP_AT] <= cells[board.FloatCell.LAST_STEP_AT]
    assert agent.faults() == []
    assert [f for f in agent.heard if f.get("mark") == "first_step"] == [{"mark": "first_step"}]


def test_resumes_at_the_next_step_and_a_step_left_undone_is_done_again(agent: Agent) -> None:
    agent.runtime()
    thing = Thing()
    assert train(everstep.State(thing=thing), thing, 10, stop_after=4) == [0, 1, 2, 3, 4]
    agent.runtime(resume_step=4, generation=1)
    thing = Thing()
    state = everstep.State(thing=thing)
    assert (state.step, state.resumed, thing.value) == (4, True, [0, 1, 2, 3, 4])
    assert train(state, thing, 7) == [5, 6]
    agent.runtime(resume_step=6, generation=2)
    assert list(everstep.State(thing=thing).steps(7)) == []


def test_resuming_at_the_older_step_forgets_the_newer_one(agent: Agent) -> None:
    agent.runtime()
    thing = Thing()
    train(everstep.State(thing=thing), thing, 6)
    assert arena.held_steps(agent.arenas[0]) == (4, 5)
    agent.runtime(resume_step=4, generation=1)
    state = everstep.State(thing=thing)
    assert thing.value == [0, 1, 2, 3, 4]
    assert arena.held_steps(agent.arenas[0]) == (4,)
    train(state, thing, 6)
    assert arena.held_steps(agent.arenas[0]) == (4, 5)


def test_nothing_to_restore_forgets_what_the_arena_holds(agent: Agent) -> None:
    agent.runtime()
    thing = Thing()
    train(everstep.State(thing=thing), thing, 3)
    agent.runtime(resume_step=None, generation=1)
    assert not everstep.State(thing=thing).resumed
    assert arena.held_steps(agent.arenas[0]) == ()


def test_model_optimizer_and_random_numbers_continue_as_if_nothing_had_happened(agent: Agent) -> None:
    def build():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        return model, torch.optim.AdamW(model.parameters())

    def run(num_steps: int, stop_after: int = 100):
        model, optimizer = build()
        state = everstep.State(model=model, optimizer=optimizer)
        torch.rand(7), random.random(), np.random.rand()  # what a program draws before its loop does not matter
        losses = []
        for step in state.steps(num_steps):
            if step > stop_after:
                break
            loss = model(torch.randn(5, 4)).square().mean() * (1 + random.random() + np.random.rand())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item().hex())
        return losses, [p.detach().clone() for p in model.parameters()]

    def seed():
        random.seed(5), np.random.seed(5), torch.manual_seed(5)

    torch.manual_seed(9)
    random.seed(5), np.random.seed(5)
    losses, parameters = run(6)
    torch.manual_seed(9)
    random.seed(5), np.random.seed(5)
    agent.runtime()
    first, _ = run(6, stop_after=2)
    seed()
    agent.runtime(resume_step=2, generation=1)
    second, resumed = run(6)
    assert first + second == losses
    assert all(torch.equal(a, b) for a, b in zip(parameters, resumed, strict=True))


def test_what_a_state_dict_draws_is_drawn_before_random_state_is_kept(agent: Agent) -> None:
    """As torchdata's StatefulDataLoader draws in its own before it is first iterated."""

    class Drawing(Thing):
        def state_dict(self):
            torch.rand(1), random.random(), np.random.rand()
            return super().state_dict()

    def drawn() -> tuple:
        return torch.rand(1).item(), random.random(), np.random.rand()

    agent.runtime()
    thing = Drawing()
    train(everstep.State(thing=thing), thing, 3)
    after = drawn()
    agent.runtime(resume_step=2, generation=1)
    for _ in everstep.State(thing=thing).steps(4):
        assert drawn() == after


def test_state_that_grows_gets_a_larger_arena_and_the_step_stays_restorable(agent: Agent) -> None:
    agent.runtime()
    thing = Thing()
    state = everstep.State(thing=thing)
    for step in state.steps(3):
        thing.value = torch.zeros(1000 if step < 2 else 1 << 20)
    assert len(agent.asked) == 2
    assert agent.asked[1] > 2 * 4 << 20
    agent.runtime(resume_step=1, generation=1)
    everstep.State(thing=thing)
    assert thing.value.shape == (1000,)


def test_refused_memory_is_said_once_and_training_goes_on(agent: Agent, capfd: pytest.CaptureFixture) -> None:
    agent.refuse = "the node's limit is 8 MiB"
    agent.runtime(rank=2, world_size=4)
    thing = Thing(torch.zeros(1 << 20))
    assert list(everstep.State(thing=thing).steps(4)) == [0, 1, 2, 3]
    said = capfd.readouterr().err
    assert said.count("everstep: rank 2") == 1
    for part in ("needs 9 MiB", "free: 3 MiB", "the node's limit is 8 MiB", "Free memory"):
        assert part in said
    assert len(agent.asked) == 1
    assert [fault["where"] for fault in agent.faults()] == ["state: arena"]
    assert agent.published() == -1


def test_agent_that_is_gone_is_a_refusal(agent: Agent, capfd: pytest.CaptureFixture) -> None:
    agent.runtime()
    agent._ours[-2].shutdown(socket.SHUT_RDWR)
    thing = Thing()
    assert train(everstep.State(thing=thing), thing, 3) == [0, 1, 2]
    assert "without snapshots" in capfd.readouterr().err


def test_unserialisable_object_is_named_once_and_the_last_good_snapshot_stays(
    agent: Agent, capfd: pytest.CaptureFixture
) -> None:
    agent.runtime()
    good, bad = Thing(1), Thing(1)
    state = everstep.State(good=good, loader=bad)
    for step in state.steps(8):
        bad.value = threading.Lock() if 2 <= step < 6 else step
        if step in (3, 6):
            assert arena.held_steps(agent.arenas[0]) == (0, 1)
    said = capfd.readouterr().err
    assert said.count("everstep:") == 1
    assert "no snapshot of step 2: State keyword 'loader' could not be saved" in said
    assert arena.held_steps(agent.arenas[0]) == (6, 7)
    assert [fault["where"] for fault in agent.faults()] == ["state: part loader"]


def test_state_dict_that_raises_does_not_stop_training(agent: Agent, capfd: pytest.CaptureFixture) -> None:
    class Broken(Thing):
        def state_dict(self):
            raise ValueError("not today")

    agent.runtime()
    assert list(everstep.State(ema=Broken()).steps(2)) == [0, 1]
    assert "'ema' could not be saved (ValueError: not today)" in capfd.readouterr().err


def test_an_exception_of_a_signal_handler_is_not_swallowed(agent: Agent) -> None:
    class Signalled(Thing):
        def state_dict(self):
            signal.raise_signal(signal.SIGUSR1)
            return 1

    def on_signal(*_):
        raise InterruptedError("of the program's own")

    agent.runtime()
    before = signal.signal(signal.SIGUSR1, on_signal)
    try:
        with pytest.raises(InterruptedError, match="of the program's own"):
            list(everstep.State(x=Signalled()).steps(2))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_other_world_size_is_refused_with_both_sizes(agent: Agent) -> None:
    agent.runtime(world_size=2)
    thing = Thing()
    train(everstep.State(thing=thing), thing, 3)
    agent.runtime(resume_step=2, world_size=4, generation=1)
    with pytest.raises(SnapshotError, match=r"taken with 2 ranks, this generation has 4.*Run with 2 ranks again"):
        everstep.State(thing=thing)


def test_a_step_that_is_not_held_is_refused(agent: Agent) -> None:
    agent.runtime()
    thing = Thing()
    train(everstep.State(thing=thing), thing, 3)
    agent.runtime(resume_step=7, generation=1)
    with pytest.raises(SnapshotError, match=r"told to resume after step 7.*steps \[1, 2\] of rank 0"):
        everstep.State(thing=thing)
    agent.arenas = []
    agent.runtime(resume_step=7, generation=2)
    with pytest.raises(SnapshotError, match="it was given none"):
        everstep.State(thing=thing)


def test_damaged_snapshot_is_refused(agent: Agent) -> None:
    agent.runtime()
    thing = Thing("x" * 100)
    list(everstep.State(thing=thing).steps(1))
    snapshot = arena.inspect(agent.arenas[0]).snapshots[0]
    end = arena.PAGE_BYTES + arena.inspect(agent.arenas[0]).capacity_bytes * snapshot.buffer + snapshot.length
    os.pwrite(agent.arenas[0], b"\xff\xff", end - 20)
    agent.runtime(resume_step=0, generation=1)
    with pytest.raises(SnapshotError, match="step 0 on rank 0 is damaged"):
        everstep.State(thing=thing)


def test_changed_shapes_name_the_keyword(agent: Agent) -> None:
    agent.runtime()
    list(everstep.State(model=torch.nn.Linear(2, 3)).steps(1))
    agent.runtime(resume_step=0, generation=1)
    with pytest.raises(SnapshotError, match=r"State\(model=...\): Linear(?s:.*)size mismatch"):
        everstep.State(model=torch.nn.Linear(2, 4))


def test_other_keywords_are_refused(agent: Agent) -> None:
    agent.runtime()
    list(everstep.State(a=Thing(1), b=Thing(2)).steps(1))
    agent.runtime(resume_step=0, generation=1)
    with pytest.raises(SnapshotError, match=r"new: \['c'\], gone: \['b'\]"):
        everstep.State(a=Thing(), c=Thing())


def test_a_second_state_in_one_process_is_refused(agent: Agent) -> None:
    agent.runtime()
    first = everstep.State(model=Thing(1))
    next(first.steps(2))
    with pytest.raises(EverstepError, match=r"of \(model\) and of \(ema\)"):
        next(everstep.State(ema=Thing(2)).steps(2))
    assert next(first.steps(2)) == 0
