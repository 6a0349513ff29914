"""The `.metadata` of torch.distributed.checkpoint for a checkpoint of ours, made without torch.

Answers: which names are there, how do the parts of all ranks make up each tensor, and where are their bytes. Called by
`committing`, which has no time to import torch (three seconds of a CPU, when a machine is about to go). So the pickle
is written here, of torch's classes by their names; a test compares it with what torch itself would write.
"""

import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from everstep.checkpoint.persist.form import form
from everstep.checkpoint.persist.form.form import name_of

DCP_VERSION = "1.0.0"
TYPED_PATHS = "everstep_paths"


@dataclass(slots=True)
class Merged:
    """The tensors and values of all ranks, by name."""

    tensors: dict[str, "_Whole"] = field(default_factory=dict)
    values: set[str] = field(default_factory=set)
    places: dict[tuple[str, tuple[int, ...] | None], tuple[str, int, int]] = field(default_factory=dict)
    paths: dict[str, tuple[form.PathItem, ...]] = field(default_factory=dict)
    unequal: set[str] = field(default_factory=set)
    sums: dict[tuple[str, tuple[int, ...]], str] = field(default_factory=dict)


@dataclass(slots=True)
class _Whole:
    """A tensor of all ranks."""

    dtype: str
    sizes: tuple[int, ...]
    chunks: list[tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)  # offsets, sizes


def merge(parts: Sequence[form.RankPart], locate: Callable[[str], str]) -> Merged:
    """`locate` gives the path of an object as the reader needs it."""
    merged = Merged()
    for part in parts:
        for named in part.named:
            _merge_tensor(merged, named, part.tensors[named.tensor], locate)
        for value in part.values:
            _merge_value(merged, value, locate)
    return merged


def _merge_tensor(merged: Merged, named: form.Named, tensor: form.Tensor, locate: Callable[[str], str]) -> None:
    name = name_of(named.path)
    merged.paths.setdefault(name, named.path)
    known = merged.tensors.get(name)
    if name in merged.values:
        merged.unequal.add(name)
        return
    if known is None:
        known = merged.tensors[name] = _Whole(tensor.dtype, named.sizes)
    elif (known.sizes, known.dtype) != (named.sizes, tensor.dtype):
        merged.unequal.add(name)
        return
    if named.is_shard and 0 in tensor.sizes:
        return  # a rank without a share
    for piece in tensor.pieces:
        offsets = tuple(a + b for a, b in zip(named.offsets, piece.offsets, strict=True))
        if merged.sums.setdefault((name, offsets), piece.sum) != piece.sum:
            merged.unequal.add(name)
        if (name, offsets) not in merged.places:
            known.chunks.append((offsets, piece.sizes))
            merged.places[name, offsets] = (locate(piece.object), piece.stream_at, piece.stream_bytes)


def _merge_value(merged: Merged, value: form.Value, locate: Callable[[str], str]) -> None:
    name = name_of(value.path)
    merged.paths.setdefault(name, value.path)
    if merged.sums.setdefault((name, ()), value.sum) != value.sum or name in merged.tensors:
        merged.unequal.add(name)
        return
    if name not in merged.values:
        merged.values.add(name)
        merged.places[name, None] = (locate(value.object), value.stream_at, value.stream_bytes)


class _Class:
    """A class or function of another module, by its name."""

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name

    def __call__(self) -> None:
        raise TypeError("only its name is known here")  # pickle asks whether it could be called


class _Made:
    """A value that the reader makes by a call."""

    __slots__ = ("arguments", "make")

    def __init__(self, make: _Class, *arguments: object) -> None:
        self.make = make
        self.arguments = arguments


class _New:
    """An instance of a class, with a state."""

    __slots__ = ("kind", "state")

    def __init__(self, kind: _Class, state: object = None) -> None:
        self.kind = kind
        self.state = state


_WrittenInPython: Any = pickle._Pickler  # its table of types can be added to


class _ByName(_WrittenInPython):  # type: ignore[misc]
    dispatch = dict(_WrittenInPython.dispatch)

    def save_class(self, thing: _Class) -> None:
        self.save(thing.module)
        self.save(thing.name)
        self.write(pickle.STACK_GLOBAL)
        self.memoize(thing)

    def save_made(self, thing: _Made) -> None:
        # No memo: nothing is met twice but what is worth no more than a few bytes.
        self.save(thing.make)
        self.save(thing.arguments)
        self.write(pickle.REDUCE)

    def save_new(self, thing: _New) -> None:
        self.save(thing.kind)
        self.write(pickle.EMPTY_TUPLE + pickle.NEWOBJ)
        if thing.state is not None:
            self.save(thing.state)
            self.write(pickle.BUILD)

    dispatch[_Class] = save_class
    dispatch[_Made] = save_made
    dispatch[_New] = save_new


_SIZE = _Class("torch", "Size")
_MODULE = "torch.distributed.checkpoint.metadata"
_METADATA, _INDEX = _Class(_MODULE, "Metadata"), _Class(_MODULE, "MetadataIndex")
_TENSOR, _BYTES = _Class(_MODULE, "TensorStorageMetadata"), _Class(_MODULE, "BytesStorageMetadata")
_CHUNK, _PROPERTIES = _Class(_MODULE, "ChunkStorageMetadata"), _Class(_MODULE, "TensorProperties")
_META, _PLACE = _Class(_MODULE, "StorageMeta"), _Class("torch.distributed.checkpoint.filesystem", "_StorageInfo")
_CONTIGUOUS = _Made(_Class(_MODULE, "_MEM_FORMAT_ENCODING"), 0)
_STRIDED = _Made(_Class("torch.serialization", "_get_layout"), "torch.strided")


def metadata_bytes(merged: Merged) -> bytes:
    dtypes = {whole.dtype: _Class(*whole.dtype.rsplit(".", 1)) for whole in merged.tensors.values()}
    entries: dict[str, _New] = {}
    for name in sorted({*merged.tensors, *merged.values}):
        whole = merged.tensors.get(name)
        entries[name] = _New(_BYTES) if whole is None else _tensor(whole, dtypes[whole.dtype])
    numbers = {name: {offsets: i for i, (offsets, _) in enumerate(w.chunks)} for name, w in merged.tensors.items()}
    places = {}
    for (name, offsets), (path, at, length) in merged.places.items():
        number = None if offsets is None else numbers[name][offsets]
        index = _New(_INDEX, {"fqn": name, "index": number} | ({} if offsets is None else {"offset": _size(offsets)}))
        places[index] = _New(_PLACE, {"relative_path": path, "offset": at, "length": length})
    meta: dict[str, Any] = {"checkpoint_id": None, "save_id": None, "load_id": None, "modules": []}
    fields = {
        "state_dict_metadata": entries,
        "planner_data": {name: _dcp_path(path) for name, path in merged.paths.items()},
        "storage_data": places,
        "storage_meta": _New(_META, meta),
        "version": DCP_VERSION,
        # torch does not distinguish a key that is the number 0 from one that is the text "0". Not read by torch.
        TYPED_PATHS: {name: path for name, path in merged.paths.items() if _has_numbers(path)},
    }
    file = io.BytesIO()
    _ByName(file, protocol=4).dump(_New(_METADATA, fields))
    return file.getvalue()


def _tensor(whole: _Whole, dtype: _Class) -> _New:
    chunks = [_New(_CHUNK, {"offsets": _size(offsets), "sizes": _size(sizes)}) for offsets, sizes in whole.chunks]
    properties = _New(_PROPERTIES, (dtype, _STRIDED, False, _CONTIGUOUS, False))
    return _New(_TENSOR, {"properties": properties, "size": _size(whole.sizes), "chunks": chunks})


def _size(numbers: tuple[int, ...]) -> _Made:
    return _Made(_SIZE, numbers)


def _dcp_path(path: tuple[form.PathItem, ...]) -> tuple[str | int, ...]:
    return tuple(item[0] if isinstance(item, tuple) else str(item) for item in path)


def _has_numbers(path: tuple[form.PathItem, ...]) -> bool:
    return any(isinstance(item, int) for item in path)
