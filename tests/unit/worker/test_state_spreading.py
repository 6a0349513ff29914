"""State from the memory of a generation with another number of ranks."""

import os

import pytest
import torch
from test_state import Agent, Thing

import everstep
from everstep.checkpoint import arena
from everstep.errors import SnapshotError
from everstep.worker.link import runtime


@pytest.fixture
def former(monkeypatch: pytest.MonkeyPatch):
    """Three ranks have trained to step 4: by rank, the agent that has its memory."""
    monkeypatch.setattr(runtime, "_current", None)
    agents: dict[int, Agent] = {}

    def train(**things: object) -> dict[int, Agent]:
        for rank in range(3):
            agent = agents[rank] = Agent()
            agent.runtime(rank=rank, world_size=3)
            state = everstep.State(**{name: make(rank) for name, make in things.items()})
            for _ in state.steps(5):
                pass
            assert arena.held_steps(agent.arenas[-1])[-1] == 4
        return agents

    yield train
    for agent in agents.values():
        agent.close()


def resume(former: dict[int, Agent], rank: int, **objects: object) -> tuple[everstep.State, runtime.Runtime, Agent]:
    agent = Agent()
    now = agent.runtime(resume_step=4, rank=rank, world_size=2, generation=1)
    now.former_world = len(former)
    now.former = {each: os.dup(agent.arenas[-1]) for each, agent in former.items()}
    try:
        return everstep.State(**objects), now, agent
    finally:
        agent.close()


def model(value: float) -> torch.nn.Linear:
    made = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(made.weight, value)
    torch.nn.init.constant_(made.bias, value)
    return made


def test_what_all_former_ranks_held_is_taken_by_each_rank(former, capsys):
    theirs = former(model=lambda rank: model(0.5), note=lambda rank: Thing({"seen": 5}))
    for rank in (0, 1):
        mine, note = model(0.0), Thing()
        state, now, _ = resume(theirs, rank, model=mine, note=note)
        assert (state.step, state.resumed) == (4, True)
        assert torch.equal(mine.weight, torch.full((2, 3), 0.5))
        assert note.value == {"seen": 5}
        assert now.former == {}, "memory that the agent gives up must not stay"
    assert "another number of ranks" in capsys.readouterr().err


def test_what_differed_and_is_no_shard_is_refused_and_fixes_the_size(former):
    theirs = former(model=lambda rank: model(float(rank)))
    agent = Agent()
    now = agent.runtime(resume_step=4, world_size=2, generation=1)
    now.former_world, now.former = 3, {each: os.dup(one.arenas[-1]) for each, one in theirs.items()}
    with pytest.raises(SnapshotError, match="cannot be spread over other ranks"):
        everstep.State(model=model(0.0))
    agent.faults()
    (said,) = [frame["size_fixed"] for frame in agent.heard if "size_fixed" in frame]
    agent.close()
    assert said["world_size"] == 3
    assert "differed from rank to rank" in said["why"]


def test_a_damaged_snapshot_is_named_by_its_former_rank(former):
    theirs = former(model=lambda rank: model(0.5))
    fd = theirs[2].arenas[-1]
    snapshot = arena.inspect(fd).snapshots[-1]
    os.pwrite(fd, b"\xff" * 8, arena.offset_of(arena.inspect(fd), snapshot.buffer))
    agent = Agent()
    now = agent.runtime(resume_step=4, world_size=2, generation=1)
    now.former_world, now.former = 3, {each: os.dup(one.arenas[-1]) for each, one in theirs.items()}
    with pytest.raises(SnapshotError, match="of rank 2 of 3 is damaged"):
        everstep.State(model=model(0.0))
    agent.faults()
    (said,) = [frame["restore_failed"] for frame in agent.heard if "restore_failed" in frame]
    agent.close()
    assert (said["rank"], said["source"], said["is_damaged"]) == (2, "memory", True)


def test_the_size_outside_a_run_is_the_environments(monkeypatch):
    monkeypatch.setattr(runtime, "_current", None)
    monkeypatch.setenv("WORLD_SIZE", "6")
    monkeypatch.setenv("GROUP_WORLD_SIZE", "3")
    world = everstep.world()
    assert (world.size, world.num_nodes, world.is_elastic) == (6, 3, False)
    everstep.keep_size("nothing happens")


def test_the_size_in_a_run_has_its_bounds(monkeypatch):
    monkeypatch.setattr(runtime, "_current", None)
    agent = Agent()
    now = agent.runtime(rank=0, world_size=6)
    now.num_nodes, now.least_nodes, now.most_nodes = 3, 2, 4
    world = everstep.world()
    everstep.keep_size("its schedule needs it")
    agent.faults()
    agent.close()
    assert (world.size, world.min_size, world.max_size) == (6, 4, 8)
    assert world.is_elastic
    assert agent.heard[-1]["size_fixed"]["why"].endswith("keep_size(): its schedule needs it")
