"""A snapshot's bytes back to state dicts.

Answers: what was the state of this keyword. Of a state that the ranks of a node divided among themselves, a part is in
the snapshots of the others: `complete` looks it up there, and compares what each of them took for divided. It never
unpickles anything that did not come from an arena: this is memory that the same run wrote, and its checksum is compared
first. Called by `worker.snapshots.restoring` and `checkpoint.persist`.
"""

import io
import pickle
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from everstep.checkpoint import packing
from everstep.checkpoint.dividing import Division
from everstep.checkpoint.packing import ELSEWHERE, DamagedError, padded, view_of, wait_for
from everstep.checkpoint.pending import Pending


class Stored:
    """A snapshot in memory, opened for reading."""

    def __init__(
        self,
        memory: memoryview,
        length: int,
        skeleton_bytes: int,
        skeleton_crc: int,
        *,
        is_sealed: bool = True,
        is_there: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_there`: whether the memory still holds this snapshot. Raises DamagedError if its skeleton is not what was
        written."""
        self._is_there = is_there
        self._others: list[Stored] = []
        self.is_sealed = is_sealed  # else its tensors could not be compared with what was written
        skeleton = bytes(memory[length - skeleton_bytes : length])
        if zlib.crc32(skeleton) != skeleton_crc:
            raise DamagedError("the checksum of its skeleton does not match")
        table, self._parts, *divided = pickle.loads(skeleton)
        self._entries: list[Any] = pickle.loads(table)
        self._skeleton = skeleton
        self._length = length
        self.memory = memory
        self._flat = torch.frombuffer(memory, dtype=torch.uint8)
        self._division = Division(*divided[0]) if divided else None
        self._elsewhere: dict[int, tuple[Stored, Any]] = {}  # by number: where it is instead, and its entry there

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._parts)

    @property
    def partners(self) -> tuple[int, ...]:
        """Other ranks whose snapshots of the same step have the rest of this one."""
        if self._division is None:
            return ()
        return tuple(rank for rank in self._division.ranks if rank != self._division.rank)

    def complete(self, others: Mapping[int, "Stored"]) -> None:
        """From now on what is missing is read from these, by rank. Raises DamagedError where they do not fit: each must
        have divided the same tensors in the same way."""
        if self._division is None:
            return
        mine = self._shares()
        for rank in self.partners:
            other = others[rank]._division
            if other is None or other.rank != rank or others[rank]._shares() != mine:
                raise DamagedError(f"rank {rank} has divided the state with its neighbours in another way")
        self._others = [others[rank] for rank in self.partners]
        self.is_sealed = self.is_sealed and all(other.is_sealed for other in self._others)
        numbers = {rank: others[rank]._numbers() for rank in self.partners}
        for number, (name, owner) in self._division.owners.items():
            if owner != self._division.rank:
                at = others[owner]._entries[numbers[owner][name]][0]
                self._elsewhere[number] = others[owner], (at, *self._entries[number][1:])

    def is_intact(self) -> bool:
        """Whether all that is read from here is still there."""
        return self._is_there() and all(other._is_there() for other in self._others)

    def place(self, number: int) -> "tuple[Stored, Any]":
        """The snapshot that a tensor is in, and its entry there. Raises DamagedError."""
        entry = self._entries[number]
        if entry[0] != ELSEWHERE:
            return self, entry
        if number not in self._elsewhere:
            raise DamagedError("a part of it is in the memory of other ranks of the node, and was not looked up")
        return self._elsewhere[number]

    def load(self, name: str) -> Any:  # noqa: ANN401 - whatever the state_dict was
        """A fresh copy of one part; nothing in it points into the snapshot."""
        making = _Unpickler(io.BytesIO(self._parts[name]), self.place)
        value = making.load()
        wait_for({tensor.device for tensor in making.made.values() if tensor.device.type not in ("cpu", "meta")})
        return value

    def pending(self, name: str) -> Pending | None:
        """Return a fresh copy of one part whose tensors are not filled yet. None where that cannot be: an object may
        look into tensors while it is made, and tensors of other devices are made by the program's own thread only."""
        return self._pending(name, _made_here)

    def pending_on_devices(self, name: str, own: Mapping[str, torch.Tensor]) -> Pending | None:
        """Return a fresh copy of one part, of any device, whose tensors are made now and not filled yet. If the values
        go to `own` instead, no tensors are made. None where that cannot be."""
        if own:
            sketch = self._pending(name, _sketched)
            if sketch is not None and sketch.redirect(own):
                return sketch
        return self._pending(name, _made_there)

    def _pending(self, name: str, make: "_Make") -> Pending | None:
        making = _PendingUnpickler(io.BytesIO(self._parts[name]), self.place, make)
        try:
            value = making.load()
        except _NotPlainError:
            return None
        return Pending(value, making.made, self._view)

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Those that its tensors were on, but for the CPU."""
        return tuple(torch.device(name) for name in sorted({entry[5] for entry in self._entries} - {"cpu"}))

    def _view(self, number: int) -> torch.Tensor:
        stored, entry = self.place(number)
        return view_of(stored._flat, entry)

    def whole(self) -> tuple[list[int], int, bytes]:
        """How this snapshot would be laid out if nothing were divided: where each tensor would begin, where all of them
        would end, and the skeleton, which lies there. Of an undivided one that is how it is."""
        if self._division is None:
            return [entry[0] for entry in self._entries], self._length - len(self._skeleton), self._skeleton
        begins, end = [], 0
        for entry in self._entries:
            begins.append(end)
            end += padded(entry[1])
        entries = [(at, *entry[1:]) for at, entry in zip(begins, self._entries, strict=True)]
        table = pickle.dumps(entries, pickle.HIGHEST_PROTOCOL)
        return begins, end, pickle.dumps((table, self._parts), pickle.HIGHEST_PROTOCOL)

    def _shares(self) -> tuple[tuple[int, ...], dict[str, Any]]:
        """Owner and kind of each divided tensor: the same for all ranks that share it."""
        assert self._division is not None
        owners = self._division.owners
        kinds = {name: (owner, self._entries[number][1:5]) for number, (name, owner) in owners.items()}
        return self._division.ranks, kinds

    def _numbers(self) -> dict[str, int]:
        return {name: number for number, (name, _) in self._division.owners.items()} if self._division else {}


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, place: Callable[[int], tuple[Stored, Any]]) -> None:
        super().__init__(file)
        self._place = place
        self.made: dict[int, torch.Tensor] = {}

    def find_class(self, module: str, name: str) -> object:
        if name == packing._stored_tensor.__name__ and module == packing.__name__:
            return self._tensor
        if name == packing._stored_shard.__name__ and module == packing.__name__:
            return self._shard
        return super().find_class(module, name)

    def _tensor(self, index: int, is_parameter: bool, requires_grad: bool) -> torch.Tensor:
        """Shared memory becomes shared again: the same number gives the same tensor."""
        tensor = self.made.get(index)
        if tensor is None:
            tensor = self.made[index] = self._make(*self._place(index))
        if is_parameter:
            return torch.nn.Parameter(tensor, requires_grad=requires_grad)
        return tensor.detach().requires_grad_() if requires_grad else tensor

    def _make(self, stored: Stored, entry: Any) -> torch.Tensor:  # noqa: ANN401
        return _own_copy(view_of(stored._flat, entry), entry[5])

    def _shard(self, index: int, spec: Any, is_parameter: bool, requires_grad: bool) -> torch.Tensor:  # noqa: ANN401
        from torch.distributed.tensor import DTensor

        tensor: torch.Tensor = DTensor(self._tensor(index, False, False), spec, requires_grad=requires_grad)
        return torch.nn.Parameter(tensor, requires_grad=requires_grad) if is_parameter else tensor


class _NotPlainError(Exception):
    """A part has more in it than tensors of the CPU and Python's own containers."""


_Make = Callable[[Any, torch.dtype], torch.Tensor]
"""An empty tensor like an entry."""


def _made_here(entry: Any, dtype: torch.dtype) -> torch.Tensor:  # noqa: ANN401
    if entry[5] != "cpu":
        raise _NotPlainError
    return torch.empty_strided(entry[3], entry[4], dtype=dtype)


def _made_there(entry: Any, dtype: torch.dtype) -> torch.Tensor:  # noqa: ANN401
    return torch.empty_strided(entry[3], entry[4], dtype=dtype, device=entry[5])


def _sketched(entry: Any, dtype: torch.dtype) -> torch.Tensor:  # noqa: ANN401
    """Shape and kind only: memory for a model twice may be more than the device has."""
    return torch.empty_strided(entry[3], entry[4], dtype=dtype, device="meta")


class _PendingUnpickler(_Unpickler):
    """Makes tensors, and fills none of them."""

    def __init__(self, file: io.BytesIO, place: Callable[[int], tuple[Stored, Any]], make: _Make) -> None:
        super().__init__(file, place)
        self._empty = make

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in _PLAIN:
            raise _NotPlainError
        return super().find_class(module, name)

    def _make(self, stored: Stored, entry: Any) -> torch.Tensor:  # noqa: ANN401
        return self._empty(entry, view_of(stored._flat, entry).dtype)


_PLAIN = {("collections", "OrderedDict"), (packing.__name__, packing._stored_tensor.__name__)}


def _own_copy(view: torch.Tensor, device: str) -> torch.Tensor:
    """On the device it came from; never the snapshot's memory, as optimizers keep the tensors they are given."""
    if device == "cpu":
        return view.clone(memory_format=torch.preserve_format)
    return view.to(device, non_blocking=True)
