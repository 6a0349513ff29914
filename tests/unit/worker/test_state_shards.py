"""Shards of DTensors are raw bytes in a snapshot, are copied while the next step runs, and come back as shards."""

import pytest
import torch
import torch.distributed as dist
from test_state import Agent

import everstep
from everstep.checkpoint import arena
from everstep.checkpoint.packing import Packer, Target
from everstep.checkpoint.stored import Stored
from everstep.worker.link import runtime
from everstep.worker.snapshots import snapshots as keeper


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runtime, "_current", None)
    monkeypatch.setattr(keeper, "SMALL_BYTES", -1)
    agent = Agent()
    yield agent
    agent.close()


def build(seed: int):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(7, 300), torch.nn.BatchNorm1d(300), torch.nn.Linear(300, 5))
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters())


def step_once(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.arange(21.0).reshape(3, 7)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_shard_is_raw_and_comes_back_on_the_same_mesh(group: None) -> None:
    model, optimizer = build(1)
    step_once(model, optimizer)
    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    packed = Packer().pack(parts)
    assert len(packed.skeleton) < 15_000  # of 15 kB per moment nothing is in the pickle
    memory = bytearray(packed.num_bytes)
    where = Target(memoryview(memory)).write(packed)
    stored = Stored(memoryview(memory), *where)
    loaded = stored.load("model")
    weight = loaded["0.weight"]
    assert type(weight) is type(parts["model"]["0.weight"])
    assert weight.device_mesh == parts["model"]["0.weight"].device_mesh
    memory[:] = bytes(len(memory))  # nothing points into the snapshot
    assert all(torch.equal(whole(loaded[name]), whole(value)) for name, value in parts["model"].items())


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def test_fully_sharded_training_goes_on_bit_for_bit(group: None, agent: Agent) -> None:
    truth, optimizer = build(1)
    for _ in range(6):
        step_once(truth, optimizer)

    now = agent.runtime()
    now.snapshot_buffers = 5
    model, optimizer = build(1)
    state = everstep.State(model=model, optimizer=optimizer)
    for step in state.steps(9):
        if step == 4:
            break
        step_once(model, optimizer)
    theirs = state._snapshots.optimizers._theirs
    assert len(theirs.later) == 6 * 4  # parameters, two moments and the step of each: all but what may change any time
    assert agent.faults() == []
    assert arena.held_steps(agent.arenas[-1])[-1] == 3

    agent.runtime(resume_step=3, generation=1)
    model, optimizer = build(2)
    state = everstep.State(model=model, optimizer=optimizer)
    for _ in state.steps(6):
        step_once(model, optimizer)
    for (name, ours), (_, other) in zip(model.state_dict().items(), truth.state_dict().items(), strict=True):
        assert torch.equal(whole(ours), whole(other)), name


def test_a_shard_that_is_changed_meanwhile_counts_it(group: None, agent: Agent) -> None:
    now = agent.runtime()
    now.snapshot_buffers = 5
    model, optimizer = build(1)
    state = everstep.State(model=model, optimizer=optimizer)
    for step in state.steps(4):
        if step == 2:
            with torch.no_grad():
                next(model.parameters()).mul_(2)
        step_once(model, optimizer)
        if step == 2:
            assert 1 not in arena.held_steps(agent.arenas[-1])
    assert [fault["where"] for fault in agent.faults()] == ["state: torn"]
