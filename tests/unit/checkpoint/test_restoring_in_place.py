"""A restore reads straight into the program's tensors where that is the same, and nowhere else; damage is found all the
same before the program goes on."""

import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import everstep
from everstep.checkpoint import arena
from everstep.checkpoint.packing import Packer, Target
from everstep.checkpoint.stored import Stored
from everstep.errors import SnapshotError
from everstep.worker.link import runtime
from everstep.worker.snapshots import in_place, restoring
from everstep.worker.snapshots.state import _DDP_ORDER, _RANDOM


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)


class Doubling(nn.Linear):
    """Keeps halves of what it has: its own loading must be used."""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[prefix + "half"] = self.weight.detach() / 2
        destination[prefix + "bias"] = self.bias.detach()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *_: Any) -> None:
        with torch.no_grad():
            self.weight.copy_(state_dict[prefix + "half"] * 2)
            self.bias.copy_(state_dict[prefix + "bias"])


class Kept:
    """Keeps the very tensors that it is given."""

    def __init__(self) -> None:
        self.state = {"a": torch.zeros(3), "deep": {"b": torch.zeros(2)}}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def swapped(module: nn.Module) -> nn.Module:
    """Its entries go by other names than its tensors, by hooks of the program's."""
    module._register_state_dict_hook(lambda _m, state, _p, _l: state.update({"weight": state.pop("bias"), "bias": 0}))
    return module


def rank_of(parts: dict[str, Any]) -> tuple[SimpleNamespace, int]:
    """A rank that resumes from a sealed snapshot of these after step 4."""
    packed = Packer().pack({**parts, _RANDOM: None, _DDP_ORDER: None})
    fd = arena.create(arena.arena_bytes(packed.num_bytes), rank=0, world_size=1)
    mine = arena.Arena(fd)
    index = mine.begin(4, 0)
    assert index is not None
    snapshot = mine.publish(*Target(mine.buffer(index)).write(packed))
    assert mine.seal(snapshot)
    board = SimpleNamespace(add_restore_s=lambda _s: None)
    rank = SimpleNamespace(rank=0, world_size=1, resume_step=4, generation=1, arenas=[fd], siblings={}, told=[])
    rank.__dict__.update(restore_path="", init_from="", board=board, reading=None, divides=False, digest_every=0)
    rank.__dict__.update(tell=lambda frame: rank.told.append(frame["restore_failed"]), let_siblings_go=lambda: None)
    rank.__dict__.update(
        snapshot_buffers=2, no_snapshots="", report_fault=lambda *_: None, _pid=os.getpid(), save_now=None
    )
    return rank, fd


@pytest.fixture
def resumed(monkeypatch):
    fds = []

    def begin(parts: dict[str, Any]) -> SimpleNamespace:
        rank, fd = rank_of(parts)
        fds.append(fd)
        monkeypatch.setattr(runtime, "_current", rank)
        return rank

    yield begin
    for fd in fds:
        os.close(fd)


def trained(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return model, optimizer


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype and one.stride() == other.stride()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize(
    "make", [Tied, lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), lambda: Doubling(4, 4)]
)
@pytest.mark.parametrize("is_ahead", [False, True])
def test_everything_is_as_it_was_and_nothing_points_into_the_snapshot(resumed, make, is_ahead) -> None:
    model, optimizer = trained(make())
    rank = resumed({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "kept": Kept().state_dict()})
    fresh, kept = make(), Kept()
    places = [tensor.data_ptr() for tensor in fresh.state_dict(keep_vars=True).values()]
    fresh_optimizer = torch.optim.AdamW(fresh.parameters(), lr=0.3)
    if is_ahead:
        restoring.read_ahead(rank)
    state = everstep.State(model=fresh, optimizer=fresh_optimizer, kept=kept)
    assert (state.step, state.resumed) == (4, True)
    assert same(dict(fresh.state_dict()), dict(model.state_dict()))
    assert same(fresh_optimizer.state_dict(), optimizer.state_dict())
    if not isinstance(fresh, Doubling):
        assert [tensor.data_ptr() for tensor in fresh.state_dict(keep_vars=True).values()] == places
    mine = arena.Arena(rank.arenas[0])
    mine.buffer(0)[:] = bytes(mine.capacity_bytes)  # whoever looked into it would see this
    assert same(dict(fresh.state_dict()), dict(model.state_dict()))
    assert same(fresh_optimizer.state_dict(), optimizer.state_dict())
    assert same(kept.state, Kept().state)


def test_a_tensor_of_the_program_is_written_directly_only_where_loading_is_copying() -> None:
    model = nn.Linear(3, 3)
    assert in_place.tensors_of(model).keys() == {"weight", "bias"}
    assert in_place.tensors_of(nn.Sequential(Doubling(2, 2))) == {}
    assert in_place.tensors_of(swapped(nn.Linear(2, 2))) == {}
    assert in_place.tensors_of(torch.optim.SGD(model.parameters(), lr=1)) == {}
    model.register_load_state_dict_post_hook(lambda *_: None)
    assert in_place.tensors_of(model) == {}
    overridden: Any = nn.Linear(3, 3)
    overridden.load_state_dict = lambda state: None
    assert in_place.tensors_of(overridden) == {}


@pytest.mark.parametrize(
    "own",
    [
        {"a": torch.zeros(3)},  # one is missing
        {"a": torch.zeros(3), "b": torch.zeros(4)},
        {"a": torch.zeros(3), "b": torch.zeros(2, dtype=torch.float64)},
        {"a": torch.zeros(3), "b": nn.Parameter(torch.zeros(2))},
        {"a": torch.zeros(3), "b": torch.zeros(1).expand(2)},
        {"a": torch.zeros(3), "b": torch.zeros(2), "c": torch.zeros(2)},
        {"a": torch.zeros(3), "b": torch.zeros(2, device="meta")},
    ],
)
def test_what_does_not_fit_gets_values_of_its_own(own: dict[str, torch.Tensor]) -> None:
    memory = bytearray(4096)
    state = {"a": torch.ones(3), "b": torch.ones(2)}
    stored = Stored(memoryview(memory), *Target(memoryview(memory)).write(Packer().pack({"x": state})))
    pending = stored.pending("x")
    assert pending is not None
    assert not pending.redirect(own)
    pending.fill()
    assert same(pending.value, state)
    assert not own["a"].any()


def test_two_values_for_one_place_are_the_programs_business() -> None:
    memory = bytearray(4096)
    parts = {"x": {"a": torch.ones(2), "b": torch.zeros(2)}}
    stored = Stored(memoryview(memory), *Target(memoryview(memory)).write(Packer().pack(parts)))
    one = torch.zeros(2)
    pending = stored.pending("x")
    assert pending is not None
    assert not pending.redirect({"a": one, "b": one})


class Summed:
    """Looks into its tensor while it is made."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.sum = tensor, float(tensor.sum())

    def __reduce__(self) -> Any:
        return Summed, (self.tensor,)


def test_an_object_that_looks_into_tensors_as_it_is_made_sees_them_filled() -> None:
    memory = bytearray(4096)
    parts = {"x": Summed(torch.ones(5))}
    stored = Stored(memoryview(memory), *Target(memoryview(memory)).write(Packer().pack(parts)))
    assert stored.pending("x") is None
    assert stored.load("x").sum == 5.0


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("place", [0, 70, 4000])
def test_damage_is_found_before_the_program_goes_on(resumed, is_ahead: bool, place: int) -> None:
    model, optimizer = trained(nn.Linear(40, 40))
    rank = resumed({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    fd = rank.arenas[0]
    at = arena.offset_of(arena.inspect(fd), 0) + place
    os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ 16]), at)
    fresh = nn.Linear(40, 40)
    if is_ahead:
        restoring.read_ahead(rank)
    with pytest.raises(SnapshotError, match="step 4 on rank 0 is damaged: bytes 0 to "):
        everstep.State(model=fresh, optimizer=torch.optim.AdamW(fresh.parameters()))
    assert [(one["is_damaged"], one["source"]) for one in rank.told] == [(True, "memory")]
    assert "everstep-restore" not in [thread.name for thread in threading.enumerate()]


def test_reading_ahead_never_raises_and_a_program_without_state_ends(resumed) -> None:
    rank = resumed({"model": nn.Linear(2, 2).state_dict()})
    os.pwrite(rank.arenas[0], b"garbage!", 0)
    restoring.read_ahead(rank)
    rank.reading.end()
    assert rank.told == []


def stored_on(device: str, parts: dict[str, Any], monkeypatch) -> Stored:
    """As if its tensors had been on this device when the snapshot was taken."""
    stored = restoring.begin(rank_of(parts)[0]).whole()
    assert stored is not None
    monkeypatch.setattr(stored, "_entries", [(*entry[:5], device) for entry in stored._entries])
    return stored


def test_what_was_on_a_device_goes_into_the_programs_own_tensors_without_a_second_copy_there(monkeypatch) -> None:
    model, own = nn.Linear(4, 4), nn.Linear(4, 4)
    stored = stored_on("cuda:0", {"model": model.state_dict()}, monkeypatch)  # nothing can be made on it here
    assert stored.pending("model") is None, "the reading thread makes nothing on a device"
    pending = stored.pending_on_devices("model", in_place.tensors_of(own))
    assert pending is not None
    pending.fill()
    assert torch.equal(own.weight, model.weight)
    assert pending.value["weight"].data_ptr() == own.weight.data_ptr()


def test_values_that_have_no_place_yet_are_made_on_their_device_and_have_arrived_when_filled(monkeypatch) -> None:
    state = {"state": {0: {"exp_avg": torch.ones(3)}}}
    stored = stored_on("meta", {"optimizer": state}, monkeypatch)
    pending = stored.pending_on_devices("optimizer", {})
    assert pending is not None
    ready, waited = [], []
    monkeypatch.setattr("everstep.checkpoint.pending.wait_for", waited.extend)
    pending.fill(make_ready=ready.append)
    assert pending.value["state"][0]["exp_avg"].is_meta
    assert [view.tolist() for view in ready] == [[1.0] * 3]
    assert waited == [torch.device("meta")]
