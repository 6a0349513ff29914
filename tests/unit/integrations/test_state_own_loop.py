"""State told of steps by a loop that is not its own; and states that are no objects."""

import pytest
import torch

import everstep
from everstep.errors import EverstepError
from everstep.integrations.dcp import _in_place, state_of


def test_a_loop_of_somebody_else_counts_as_steps_does():
    state = everstep.State(model=torch.nn.Linear(2, 2))
    assert state.begin() == 0
    state.complete_step()
    state.complete_step()
    assert state.step == 1
    state.finish()
    assert list(state.steps(4)) == [2, 3]


def test_steps_may_be_numbered_by_the_loop_and_only_grow():
    state = everstep.State(model=torch.nn.Linear(2, 2))
    state.begin()
    state.complete_step(999)
    assert state.step == 999
    with pytest.raises(EverstepError, match="step 999 is complete already"):
        state.complete_step(999)
    assert state.begin() == 1000


def test_dcp_values_come_back_where_they_were():
    mean, layer = torch.zeros(2), {"scale": torch.zeros(1)}
    states = {"mean": mean, "nest": {"layer": layer, "counts": [0, torch.zeros(2)]}, "tokens": 0, "new.name": None}
    new = {
        "mean": torch.ones(2),
        "nest": {"layer": {"scale": torch.full((1,), 3.0), "bias": 1}, "counts": [7, torch.ones(2), 9]},
        "tokens": 12,
    }
    second = states["nest"]["counts"][1]
    _in_place(states, new)
    assert mean.tolist() == [1, 1]
    assert states["mean"] is mean
    assert states["nest"]["layer"] is layer
    assert (layer["scale"].item(), layer["bias"]) == (3.0, 1)
    assert states["nest"]["counts"][0] == 7
    assert states["nest"]["counts"][1] is second
    assert second.tolist() == [1, 1]
    assert states["nest"]["counts"][2:] == [9]
    assert states["tokens"] == 12


def test_dcp_states_become_keywords():
    model = torch.nn.Linear(2, 2)
    state = state_of({"model": model, "train.step": 3}, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert state.begin() == 0
