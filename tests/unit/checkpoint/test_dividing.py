"""Which rank keeps what, and a state that is put together from the parts of several ranks."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from everstep.checkpoint import arena
from everstep.checkpoint.dividing import divide
from everstep.checkpoint.packing import DamagedError, Packer, Target
from everstep.checkpoint.persist.read.reading import load_into
from everstep.checkpoint.persist.store.committing import commit
from everstep.checkpoint.persist.write.writing import write
from everstep.checkpoint.stored import Stored
from everstep.errors import SnapshotError
from everstep.worker.digests.replicas import Target as Replicas
from everstep.worker.snapshots import dividing, restoring
from everstep.worker.snapshots.dividing import Dividing
from everstep.worker.snapshots.stepping import Optimizers

NAMES = {0: "a", 1: "b", 2: "c", 3: "d"}
SIZES = {0: 100, 1: 60, 2: 50, 3: 10}


def test_shares_are_about_the_same_and_all_ranks_come_to_the_same() -> None:
    found = [divide(rank, (3, 2), NAMES, SIZES) for rank in (2, 3)]
    assert found[0].owners == found[1].owners == {0: ("a", 2), 1: ("b", 3), 2: ("c", 3), 3: ("d", 2)}
    assert [number for number in range(5) if found[0].is_kept(number)] == [0, 3, 4]


def test_numbers_may_differ_between_ranks_and_names_may_not() -> None:
    there = divide(0, (0, 1), {7: "b", 2: "a"}, {7: 60, 2: 100})
    here = divide(1, (0, 1), {0: "a", 1: "b"}, {0: 100, 1: 60})
    assert sorted(there.owners.values()) == sorted(here.owners.values())


def state(rank: int) -> dict:
    """What is alike on all ranks, and what is not; the latter shifts the numbers."""
    generator = torch.Generator().manual_seed(1)
    alike = {name: torch.randn(8, 3, generator=generator) for name in "abcd"}
    return {"own": {"own": [torch.full((rank + 1,), float(rank))] * (rank + 1)}, "model": alike}


def by_name(parts: dict, rank: int, num_ranks: int, alike: str = "abcd"):
    names = {id(parts["model"][name]): name for name in alike}

    def of(plan, tensors, addresses):
        named = {number: names[id(tensor)] for number, tensor in enumerate(tensors) if id(tensor) in names}
        return divide(rank, range(num_ranks), named, {number: tensors[number].nbytes for number in named})

    return of


def stored(rank: int, num_ranks: int = 3, alike: str = "abcd") -> Stored:
    parts = state(rank)
    packed = Packer().pack(parts, by_name(parts, rank, num_ranks, alike))
    memory = memoryview(bytearray(packed.num_bytes))
    return Stored(memory, *Target(memory).write(packed))


def test_each_rank_has_all_of_it_again() -> None:
    snapshots = {rank: stored(rank) for rank in range(3)}
    for rank, snapshot in snapshots.items():
        assert set(snapshot.partners) == {0, 1, 2} - {rank}
        snapshot.complete(snapshots)
        for name, tensor in state(rank)["model"].items():
            assert torch.equal(snapshot.load("model")[name], tensor)
        assert snapshot.load("own")["own"][0].tolist() == [float(rank)] * (rank + 1)


def test_what_is_not_looked_up_or_divided_otherwise_is_refused() -> None:
    with pytest.raises(DamagedError, match="other ranks of the node"):
        stored(0).load("model")
    for others in ({1: stored(1, alike="abc"), 2: stored(2)}, {1: stored(2), 2: stored(2)}):
        with pytest.raises(DamagedError, match="in another way"):
            stored(0).complete(others)
    whole = state(1)
    packed = Packer().pack(whole)
    memory = memoryview(bytearray(packed.num_bytes))
    undivided = Stored(memory, *Target(memory).write(packed))
    with pytest.raises(DamagedError, match="in another way"):
        stored(0).complete({1: undivided, 2: stored(2)})


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dividing, "LEAST_STATE_BYTES", 0)
    monkeypatch.setattr(dividing, "LEAST_BYTES", 64)


def found(model: torch.nn.Module, optimizers: list, *, replicas=(0, 1), siblings=(1,), **target):
    known = Optimizers()
    for optimizer in optimizers:
        known.saw(optimizer)
    runtime = SimpleNamespace(rank=0, siblings={rank: [] for rank in siblings}, divides=True)
    now = Dividing(runtime, known)
    now.begin(Replicas(parameters=list(model.named_parameters()), replicas=replicas, **target))
    tensors = [parameter.detach() for parameter in model.parameters()]
    tensors += [value for each in optimizers for state in each.state.values() for value in state.values()]
    tensors += list(model.buffers())
    return now.of(known, tensors, [tensor.data_ptr() for tensor in tensors])


def trained(parameters) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(parameters)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


@pytest.mark.usefixtures("small")
def test_parameters_and_optimizer_state_of_a_replicated_model() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.BatchNorm1d(40))
    optimizer = trained(model.parameters())
    division = found(model, [optimizer])
    names = sorted(name for name, _ in division.owners.values())
    assert names == sorted(
        f"{name}{more}" for name, _ in model.named_parameters() for more in ("", " 0 exp_avg", " 0 exp_avg_sq")
    )
    assert found(model, [optimizer], siblings=()) is None
    assert found(model, [optimizer], replicas=(0, 2)) is None, "a rank of the node is no replica"
    assert found(model, [optimizer], missing="local SGD") is None
    assert found(model, []) is None


@pytest.mark.usefixtures("small")
def test_an_optimizer_of_a_part_of_the_model_is_a_shard() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.Linear(40, 40))
    assert found(model, [trained(model[0].parameters())]) is None
    both = [trained(model[0].parameters()), trained(model[1].parameters())]
    assert found(model, both) is not None
    stranger = trained([torch.nn.Parameter(torch.ones(40, 40))])
    assert found(model, [*both, stranger]) is None


def arena_of(rank: int) -> int:
    parts = {**state(rank), "everstep.random": rank, "everstep.ddp_order": None}
    packed = Packer().pack(parts, by_name(parts, rank, 2))
    fd = arena.create(arena.arena_bytes(packed.num_bytes), rank=rank, world_size=2)
    mine = arena.Arena(fd)
    index = mine.begin(5, 0)
    assert index is not None
    mine.seal(mine.publish(*Target(mine.buffer(index)).write(packed)))
    return fd


class Kept:
    def __init__(self, state: dict) -> None:
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def test_on_disk_every_rank_has_all_of_it_and_each_tensor_is_written_once(tmp_path: Path) -> None:
    fds = {rank: arena_of(rank) for rank in range(2)}
    written = write(str(tmp_path), step=5, generation=0, world_size=2, arenas=fds)
    commit(str(tmp_path), step=5, world_size=2, keep=1)
    for rank in range(2):
        objects = {name: Kept({}) for name in state(rank)}
        loaded = load_into(str(tmp_path / "step-0000000005"), objects, rank=rank, world_size=2)
        assert (loaded.step, loaded.random, loaded.resharded) == (5, rank, False)
        for name, tensor in state(rank)["model"].items():
            assert torch.equal(objects["model"].state[name], tensor)
        assert torch.equal(objects["own"].state["own"][0], state(rank)["own"]["own"][0])
    assert written.written_bytes > 0
    with pytest.raises(SnapshotError, match="with ranks"):
        write(str(tmp_path / "other"), step=5, generation=0, world_size=2, arenas={0: fds[0]})
    for fd in fds.values():
        os.close(fd)


class Restart:
    """A rank that begins again, and what it said."""

    def __init__(self, fds: dict[int, int], rank: int) -> None:
        self.rank, self.world_size, self.resume_step = rank, 2, 5
        self.arenas = [fds[rank]]
        self.siblings = {other: [fd] for other, fd in fds.items() if other != rank}
        self.restore_path = self.init_from = ""
        self.told: list[dict] = []

    def tell(self, frame: dict) -> None:
        self.told.append(frame["restore_failed"])


@pytest.fixture
def fds():
    found = {rank: arena_of(rank) for rank in range(2)}
    yield found
    for fd in found.values():
        os.close(fd)


def test_a_restart_reads_the_memory_of_the_others(fds: dict[int, int]) -> None:
    for rank in range(2):
        now = Restart(fds, rank)
        snapshot = restoring.begin(now).whole()
        for name, tensor in state(rank)["model"].items():
            assert torch.equal(snapshot.load("model")[name], tensor)
        assert snapshot.is_sealed
        restoring.confirm(now, snapshot)
        assert now.told == []


def test_damage_in_the_memory_of_another_is_told_as_its_own(fds: dict[int, int]) -> None:
    os.pwrite(fds[1], b"\xff\xfe\xfd", arena.offset_of(arena.inspect(fds[1]), 0) + 70)
    now = Restart(fds, 0)
    with pytest.raises(SnapshotError, match="step 5 on rank 1 is damaged"):
        restoring.begin(now).whole()
    assert [(told["rank"], told["is_damaged"]) for told in now.told] == [(1, True)]


def test_a_step_that_another_does_not_hold_cannot_be_restored(fds: dict[int, int]) -> None:
    arena.invalidate_after(fds[1], 4)
    now = Restart(fds, 0)
    with pytest.raises(SnapshotError, match="does not hold that step"):
        restoring.begin(now).whole()
    assert now.told[0]["is_damaged"]


def test_memory_that_was_overwritten_while_it_was_read_is_found(fds: dict[int, int]) -> None:
    now = Restart(fds, 0)
    snapshot = restoring.begin(now).whole()
    arena.invalidate_after(fds[1], 4)
    with pytest.raises(SnapshotError, match="overwritten"):
        restoring.confirm(now, snapshot)
