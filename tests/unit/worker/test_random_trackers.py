"""Named generators of frameworks come out of a snapshot as they went in, without a line of the program's."""

import sys
import types

import pytest
import torch

from everstep.worker.digests import random_state

MODULES = {
    "megatron": "megatron.core.tensor_parallel.random",
    "deepspeed": "deepspeed.runtime.activation_checkpointing.checkpointing",
}


class Tracker:
    """In the form of Megatron's and DeepSpeed's."""

    def __init__(self, **states) -> None:
        self.states_ = states

    def get_states(self):
        return dict(self.states_)

    def set_states(self, states):
        self.states_ = states


def put(monkeypatch: pytest.MonkeyPatch, which: str, tracker) -> None:
    module = types.ModuleType(MODULES[which])
    module._CUDA_RNG_STATE_TRACKER = tracker
    monkeypatch.setitem(sys.modules, MODULES[which], module)


@pytest.mark.parametrize("which", list(MODULES))
def test_states_come_back(monkeypatch, which):
    put(monkeypatch, which, Tracker(dropout=torch.arange(16, dtype=torch.uint8)))
    state = random_state.capture()
    tracker = Tracker(dropout=torch.zeros(16, dtype=torch.uint8))
    put(monkeypatch, which, tracker)
    random_state.restore(state)
    assert torch.equal(tracker.states_["dropout"], torch.arange(16, dtype=torch.uint8))


def test_a_generator_that_graphs_know_stays_the_same_object(monkeypatch):
    generator = torch.Generator().manual_seed(3)
    put(monkeypatch, "megatron", Tracker(dropout=generator))
    state = random_state.capture()
    expected = torch.rand(3, generator=generator)
    random_state.restore(state)
    assert torch.equal(torch.rand(3, generator=generator), expected)


def test_transformer_engines_own_mapping_is_changed(monkeypatch):
    states = {"dropout": torch.ones(16, dtype=torch.uint8)}
    module = types.ModuleType("transformer_engine.pytorch.distributed")
    module.get_all_rng_states = lambda: states
    monkeypatch.setitem(sys.modules, module.__name__, module)
    state = random_state.capture()
    states["dropout"] = torch.zeros(16, dtype=torch.uint8)
    random_state.restore(state)
    assert torch.equal(states["dropout"], torch.ones(16, dtype=torch.uint8))


def test_without_a_tracker_nothing_is_kept_and_none_is_made(monkeypatch):
    put(monkeypatch, "megatron", None)
    assert "trackers" not in random_state.capture()


def test_a_tracker_that_is_gone_is_an_error(monkeypatch):
    put(monkeypatch, "megatron", Tracker(dropout=torch.ones(16, dtype=torch.uint8)))
    state = random_state.capture()
    put(monkeypatch, "megatron", None)
    with pytest.raises(RuntimeError):
        random_state.restore(state)
