"""Reads the `.metadata` of a checkpoint of ours without running code that another user may have put into it.

It is a pickle, because torch.distributed.checkpoint wants one, and its checksum lies beside it, so an attacker who
writes the one writes the other. We know which classes `form.metadata` writes; no other is looked up. Called by
`resharding` and `exporting`.
"""

import io
import pickle
import pickletools
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint import metadata as dcp
from torch.serialization import _get_layout

from everstep.checkpoint.persist.form.form import DamagedFileError
from everstep.checkpoint.persist.form.metadata import TYPED_PATHS

MOST_INDEX = 1 << 20
"""Largest index of a list in a state dict: a list is filled up to its index, and optimizers have some thousand
parameters."""

MOST_DEEP = 1000

_KNOWN = {
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): _get_layout,
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): filesystem._StorageInfo,
} | {
    (dcp.__name__, name): getattr(dcp, name)
    for name in (
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties",
        "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    )
}  # fmt: skip


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - as in the base class
        known = _KNOWN.get((module, name))
        if known is None and module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            known = found
        if known is None:
            raise pickle.UnpicklingError(f"asks for {module}.{name}, which everstep does not write")
        return known

    def persistent_load(self, _: object) -> object:
        raise pickle.UnpicklingError("asks for a persistent object, which everstep does not write")


def unpickle(file: str, data: bytes) -> dcp.Metadata:
    """Raises DamagedFileError for everything that everstep does not write."""
    try:
        _check_size(data)
        metadata = _Unpickler(io.BytesIO(data)).load()
        _check(metadata)
    except Exception as error:  # whatever bytes that are no metadata lead to
        raise DamagedFileError(file, f"is not what was written: {type(error).__name__}: {error!s:.300}") from error
    assert isinstance(metadata, dcp.Metadata)
    return metadata


def _check_size(data: bytes) -> None:
    """A few bytes may ask for any length, or for a place in a table of any length, which is then made. Raises
    ValueError."""
    for opcode, argument, _ in pickletools.genops(data):  # a length that goes beyond the data is an error there
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(data):
            raise ValueError(f"place {argument} of a table, in {len(data)} bytes")


def stored_bytes(metadata: dcp.Metadata) -> Counter[str]:
    """By name: of all its pieces, which a tensor cannot be larger than."""
    lengths: Counter[str] = Counter()
    for index, place in metadata.storage_data.items():
        lengths[index.fqn] += place.length
    return lengths


def _check(metadata: object) -> None:
    """Check the types all the way down, so that nothing after this meets a surprise. Raises ValueError."""
    _demand(type(metadata) is dcp.Metadata, "no Metadata")
    assert isinstance(metadata, dcp.Metadata)
    entries, places = metadata.state_dict_metadata, metadata.storage_data
    _demand(type(entries) is dict and type(places) is dict, "no entries")
    for index, place in places.items():
        _demand(type(index) is dcp.MetadataIndex and index.fqn in entries, "bytes of no entry")
        _demand(type(place) is filesystem._StorageInfo and type(place.relative_path) is str, "bytes at no place")
        _demand(_are_counts((place.offset, place.length)), "bytes at no place")
    for name, entry in entries.items():
        _demand(type(name) is str, "an entry without a name")
        if type(entry) is dcp.TensorStorageMetadata:
            _check_tensor(entry)
        else:
            _demand(type(entry) is dcp.BytesStorageMetadata, "an entry of another kind")
    for paths, index in ((metadata.planner_data, int), (vars(metadata).get(TYPED_PATHS, {}), tuple)):
        _demand(type(paths) is dict, "paths of another kind")
        for path in paths.values():
            _demand(type(path) is tuple and 0 < len(path) <= MOST_DEEP, "not a path")
            for item in path:
                _check_item(item, is_index=type(item) is index)


def _check_tensor(entry: dcp.TensorStorageMetadata) -> None:
    dtype = entry.properties.dtype
    _demand(type(entry.size) is torch.Size and isinstance(dtype, torch.dtype), "a tensor without a shape")
    _demand(_are_counts(entry.size), "a tensor without a shape")
    _demand(type(entry.chunks) is list, "a tensor without pieces")
    for chunk in entry.chunks:
        _demand(type(chunk) is dcp.ChunkStorageMetadata, "a piece of another kind")
        shape = (chunk.offsets, chunk.sizes)
        _demand(all(type(part) is torch.Size and len(part) == len(entry.size) for part in shape), "a piece elsewhere")


def _check_item(item: Any, *, is_index: bool) -> None:  # noqa: ANN401 - of a path; anything may be there
    if is_index:
        number = item[0] if isinstance(item, tuple) and len(item) == 1 else item
        _demand(type(number) is int and 0 <= number <= MOST_INDEX, "an index that no list has")
    else:
        _demand(type(item) in (str, int), "not a path")


def _are_counts(numbers: Iterable[object]) -> bool:
    return all(type(number) is int and number >= 0 for number in numbers)


def _demand(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise ValueError(otherwise)
