"""A snapshot in memory, looked at without copying it: its state dicts by name, with tensors that point into it.

Answers: which tensors and which other values does this snapshot hold, under the names that
torch.distributed.checkpoint would give them. It writes nothing, and runs no code but that of the few classes in
`known`: others are replaced by a stand-in, and what contains one is `opaque`. Called by `sources`; knows
`checkpoint.packing` well.
"""

import io
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from everstep.checkpoint.packing import _DTYPES, DamagedError
from everstep.checkpoint.persist.form.form import PathItem, name_of
from everstep.checkpoint.persist.read.known import known
from everstep.checkpoint.stored import Stored


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor in some rank's buffer: raw bytes, dense."""

    memory: memoryview
    at: int
    num_bytes: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    path: tuple[PathItem, ...]
    entry: int
    sizes: tuple[int, ...]  # of the whole tensor
    offsets: tuple[int, ...]  # of this rank's part in it
    is_shard: bool


@dataclass(frozen=True, slots=True)
class ValueLeaf:
    path: tuple[PathItem, ...]
    value: Any


@dataclass(slots=True)
class Opened:
    entries: list[Entry]
    tensors: list[TensorLeaf] = field(default_factory=list)
    values: list[ValueLeaf] = field(default_factory=list)
    opaque: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Shard:
    """Stands for a DTensor while its part is unpickled."""

    local: torch.Tensor
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]


class _OddKey(str):
    """A key of a dict that is neither text nor a number; what lies under it has no name for others."""

    __slots__ = ()


class Unknown:
    """Stands for an object of a class that is not looked up here; takes whatever a pickle does to it."""

    def __init__(self, *_: object, **__: object) -> None: ...
    def __new__(cls, *_: object, **__: object) -> "Unknown":
        return object.__new__(cls)

    def __setstate__(self, _: object) -> None: ...
    def __reduce_ex__(self, _: object) -> Any:  # noqa: ANN401
        raise pickle.PicklingError("of a class of the program")

    def append(self, _: object) -> None: ...
    def extend(self, _: object) -> None: ...
    def __setitem__(self, _: object, __: object) -> None: ...


def open_stored(stored: Stored) -> Opened:
    """Everything in it that has a name. Its memory must stay as long as what is returned. Raises DamagedError."""
    found = Opened([_entry(*stored.place(number)) for number in range(len(stored._entries))])
    for name, pickled in stored._parts.items():
        unpickler = _Viewing(pickled, found.entries)
        try:
            tree = unpickler.load()
        except DamagedError:
            raise
        except Exception:  # a reduction that the stand-ins cannot follow: exact for its program, unknown to others
            found.opaque.append(name)
            continue
        for path, leaf in leaves_of(name, tree):
            _take(found, path, leaf, unpickler.index_of)
    return found


def _entry(stored: Stored, entry: tuple[int, int, str, tuple[int, ...], tuple[int, ...], str]) -> Entry:
    at, num_bytes, dtype, sizes, strides, _ = entry
    return Entry(stored.memory, at, num_bytes, _DTYPES[dtype], tuple(sizes), tuple(strides))


def _take(found: Opened, path: tuple[PathItem, ...], leaf: object, index_of: dict[int, int]) -> None:
    if isinstance(leaf, _Shard):
        index = index_of.get(id(leaf.local))
        if index is not None:
            found.tensors.append(TensorLeaf(path, index, leaf.sizes, leaf.offsets, True))
            return
    index = index_of.get(id(leaf))
    if index is not None:
        sizes = found.entries[index].sizes
        found.tensors.append(TensorLeaf(path, index, sizes, (0,) * len(sizes), False))
    elif isinstance(leaf, (_Shard, Unknown)) or any(isinstance(item, _OddKey) for item in path):
        found.opaque.append(name_of(path))
    else:
        found.values.append(ValueLeaf(path, leaf))


def leaves_of(name: str, tree: object) -> Iterator[tuple[tuple[PathItem, ...], object]]:
    """Yield the leaves of the state of one keyword, each with its path."""
    return _leaves((name,), tree)


def _leaves(path: tuple[PathItem, ...], value: object) -> Iterator[tuple[tuple[PathItem, ...], object]]:
    """The traversal of torch.distributed.checkpoint, with paths that keep what kind of key each was. A mapping with
    nothing in it is a value: left out, as torch does, it would be missing where the state is put together again."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves((*path, key if type(key) in (str, int) else _OddKey(str(key))), item)
    elif isinstance(value, list) and not _is_terminal(value):
        for index, item in enumerate(value):
            yield from _leaves((*path, (index,)), item)
    else:
        yield path, value


def _is_terminal(value: object) -> bool:
    if isinstance(value, Mapping):
        return False
    if not isinstance(value, list):
        return True
    for item in value:
        if (isinstance(item, Mapping | list) and not _is_terminal(item)) or isinstance(item, torch.Tensor | _Shard):
            return False
    return True


class _Viewing(pickle.Unpickler):
    """Makes of each stored tensor a view of the snapshot's memory with a storage of its own."""

    def __init__(self, pickled: bytes, entries: list[Entry]) -> None:
        super().__init__(io.BytesIO(pickled))
        self._entries = entries
        self._made: dict[int, torch.Tensor] = {}
        self.index_of: dict[int, int] = {}  # by the id of a view or parameter, which `_kept` keeps alive
        self._kept: list[object] = []

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401
        if (module, name) == ("everstep.checkpoint.packing", "_stored_tensor"):
            return self._tensor
        if (module, name) == ("everstep.checkpoint.packing", "_stored_shard"):
            return self._shard
        found = known(module, name)
        return Unknown if found is None else found

    def _tensor(self, index: int, is_parameter: bool, requires_grad: bool) -> torch.Tensor:
        tensor = self._made.get(index)
        if tensor is None:
            tensor = self._made[index] = view(self._entries[index])
        if is_parameter:
            tensor = torch.nn.Parameter(tensor, requires_grad=requires_grad)
        elif requires_grad:
            tensor = tensor.detach().requires_grad_()
        self.index_of[id(tensor)] = index
        self._kept.append(tensor)
        return tensor

    def _shard(self, index: int, spec: Any, is_parameter: bool, requires_grad: bool) -> object:  # noqa: ANN401
        return _shard_of(self._tensor(index, is_parameter, requires_grad), spec)


def _shard_of(local: torch.Tensor, spec: Any) -> _Shard | Unknown:  # noqa: ANN401 - DTensorSpec
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sizes, offsets = compute_local_shape_and_global_offset(spec.tensor_meta.shape, spec.mesh, spec.placements)
    if tuple(sizes) != tuple(local.shape):
        return Unknown()  # shards that are no block of the whole
    return _Shard(local, tuple(spec.tensor_meta.shape), tuple(offsets))


def view(entry: Entry) -> torch.Tensor:
    """The tensor without a copy; what is saved of it is only its own bytes."""
    if entry.num_bytes == 0:
        return torch.empty(entry.sizes, dtype=entry.dtype)
    flat = torch.frombuffer(entry.memory, dtype=torch.uint8, count=entry.num_bytes, offset=entry.at)
    return flat.view(entry.dtype).as_strided(entry.sizes, entry.strides)
