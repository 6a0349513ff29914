"""A small training, and what the agent hears of its State: shared by the tests of completeness."""

import torch
from test_state import Agent
from torch import nn

import everstep


class Kit:
    """A small training: what a step of it needs, by name."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def step(self) -> None:
        loss = self.model(torch.randn(4, 8)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def run(state: everstep.State, step, num_steps: int = 5) -> None:
    for _ in state.steps(num_steps):
        step()


def incomplete(agent: Agent) -> str:
    """Why the State was refused, as the agent heard it; empty: it was not."""
    assert not agent.faults()
    return next((frame["incomplete"]["why"] for frame in agent.heard if "incomplete" in frame), "")


def refused(agent: Agent, *names: str) -> None:
    why = incomplete(agent)
    assert why
    assert all(name in why for name in names), why
    assert agent.published() == -1
