"""A rank in the test's own process whose snapshots are copied while the next step runs, and a gate before each copy."""

import threading

import pytest
import torch
from test_state import Agent

import everstep
from everstep.checkpoint import arena
from everstep.worker.link import runtime
from everstep.worker.snapshots import copying
from everstep.worker.snapshots import snapshots as keeper


def unhurried_agent(monkeypatch: pytest.MonkeyPatch):
    """For a fixture: the agent of a rank none of whose states is small."""
    monkeypatch.setattr(runtime, "_current", None)
    monkeypatch.setattr(keeper, "SMALL_BYTES", -1)
    agent = Agent()
    yield agent
    agent.close()


class Gate:
    """Holds the copying thread in front of its copies."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self.reached = threading.Event()
        copy = copying._copy_in_chunks

        def gated(places, tensors):
            self.reached.set()
            assert self.is_open.wait(60)
            copy(places, tensors)

        monkeypatch.setattr(copying, "_copy_in_chunks", gated)

    def close(self) -> None:
        self.reached.clear()
        self.is_open.clear()


def gate_before_copies(monkeypatch: pytest.MonkeyPatch):
    """For a fixture."""
    gate = Gate(monkeypatch)
    yield gate
    gate.is_open.set()


def begin(agent: Agent, resume_step: int | None = None, generation: int = 0, num_buffers: int = 5):
    now = agent.runtime(resume_step=resume_step, generation=generation)
    now.snapshot_buffers = num_buffers
    torch.manual_seed(1)
    model = torch.nn.Linear(50, 50)
    optimizer = torch.optim.AdamW(model.parameters())
    return now, model, optimizer, everstep.State(model=model, optimizer=optimizer)


def step_once(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(1, 50)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def held(agent: Agent) -> tuple[int, ...]:
    return arena.held_steps(agent.arenas[-1])


def answer(now, limit_s: float):
    """As the watch thread asks."""
    result = []
    thread = threading.Thread(target=lambda: result.append(now.save_now(limit_s)))
    thread.start()
    thread.join()
    return result[0]
