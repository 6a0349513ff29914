"""A checkpoint with another number of ranks, another layout, or of torch.distributed.checkpoint's own making.

Answers: what is each object's state, when it cannot be put together as it was in memory. Names and blocks are matched
by torch.distributed.checkpoint's planner, on each rank by itself, without a process group; the tree of each state dict
is built from the names. Called by `reading`. What cannot be spread over other ranks is refused: a tensor that every
rank held differently and that is no shard of anything has no meaning for another number of ranks.
"""

import importlib
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from everstep.checkpoint.packing import DamagedError
from everstep.checkpoint.persist.form import form
from everstep.checkpoint.persist.form.paths import set_in, typed_path
from everstep.checkpoint.persist.read.alone import load_alone
from everstep.checkpoint.persist.read.giving import OWN, Loaded, Stateful, give_one
from everstep.checkpoint.persist.read.metadata import unpickle
from everstep.checkpoint.persist.read.opening import leaves_of
from everstep.checkpoint.persist.read.templates import Template
from everstep.checkpoint.persist.store.checked import CheckedReader, cause_of
from everstep.checkpoint.persist.store.storage import Storage, is_url
from everstep.errors import SnapshotError

_SHOWN = 5


def same_shards(part: form.RankPart, objects: Mapping[str, Stateful]) -> bool:
    """Whether what this rank holds now are the same blocks of the same tensors as then."""
    now = {
        form.name_of(path): leaf
        for name, thing in objects.items()
        for path, leaf in leaves_of(name, thing.state_dict())
    }
    for named in part.named:
        leaf = now.get(form.name_of(named.path))
        if isinstance(leaf, torch.Tensor) and _block_of(leaf) != (
            named.sizes,
            named.offsets if named.is_shard else (0,) * len(named.sizes),
            part.tensors[named.tensor].sizes,
        ):
            return False
    return True


def _block_of(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(whole size, offsets, size of the local part)."""
    if not hasattr(tensor, "__create_chunk_list__"):
        return tuple(tensor.shape), (0,) * tensor.dim(), tuple(tensor.shape)
    chunk = tensor.__create_chunk_list__()[0]
    return tuple(tensor.shape), tuple(chunk.offsets), tuple(chunk.sizes)


def load_resharded(
    storage: Storage,
    folder: str,
    manifest: form.Manifest,
    objects: Mapping[str, Stateful],
    *,
    rank: int,
    world_size: int,
) -> Loaded:
    """A checkpoint of ours on other ranks. Raises OSError, DamagedFileError, SnapshotError."""
    metadata = read_metadata(storage, folder, manifest)
    written = {typed_path(metadata, name) or (name,) for name in metadata.state_dict_metadata}
    keywords = {str(path[0]) for path in written} - OWN
    if set(objects) != keywords:
        raise SnapshotError(
            f"State has other keywords than when the checkpoint of step {manifest.step} was written: new: "
            f"{sorted(set(objects) - keywords)}, gone: {sorted(keywords - set(objects))}. Use the same ones"
        )
    notes = _refuse_unequal(manifest, metadata, objects, world_size)
    _load(CheckedReader(storage, metadata), metadata, objects, objects)
    return Loaded(step=manifest.step, resharded=True, notes=notes)


def read_metadata(storage: Storage, folder: str, manifest: form.Manifest) -> Metadata:
    """Ours, checked, and unpickled to the classes that we write and nothing else. Raises OSError, DamagedFileError."""
    name = f"{folder}/{form.METADATA}"
    data = storage.read(name)
    if form.checksum(data) != manifest.metadata:
        raise form.DamagedFileError(name, "its checksum is not that of the manifest")
    return unpickle(name, data)


def load_foreign(storage: Storage, folder: str, objects: Mapping[str, Stateful]) -> Loaded:
    """A checkpoint that torch.distributed.checkpoint wrote. Raises OSError, DamagedError, SnapshotError."""
    path = storage.path(folder)
    reader = _fsspec_reader()(path) if is_url(path) else FileSystemReader(path)
    try:
        metadata = reader.read_metadata()
        there = {str((typed_path(metadata, name) or (name,))[0]) for name in metadata.state_dict_metadata}
    except OSError:
        raise
    except Exception as error:  # whatever unpickling damaged bytes raises
        raise DamagedError(f"{path}/{form.METADATA} is damaged: {type(error).__name__}: {error}") from error
    found = {name: thing for name, thing in objects.items() if name in there}
    if not found:
        raise SnapshotError(
            f"checkpoint {path} has none of State's keywords {sorted(objects)}; it has {sorted(there)[:_SHOWN]}. "
            "Save it as {keyword: object} with torch.distributed.checkpoint.save"
        )
    _load(reader, metadata, found, objects)
    fresh = sorted(set(objects) - set(found))
    notes = (f"{', '.join(fresh)} begin anew: checkpoint {path} has nothing for them",) if fresh else ()
    return Loaded(step=None, resharded=True, notes=notes)


def _fsspec_reader() -> type[FileSystemReader]:
    """It has no underscore since torch 2.15, which warns of the older name."""
    try:
        module = importlib.import_module("torch.distributed.checkpoint.fsspec_filesystem")
    except ImportError:
        module = importlib.import_module("torch.distributed.checkpoint._fsspec_filesystem")
    found: type[FileSystemReader] = module.FsspecReader
    return found


def _refuse_unequal(
    manifest: form.Manifest, metadata: Metadata, objects: Mapping[str, Stateful], world_size: int
) -> tuple[str, ...]:
    """Raises SnapshotError for tensors that ranks held unequal; says which other values are rank 0's."""
    refused: list[str] = []
    taken: list[str] = []
    for name in manifest.unequal:
        path = typed_path(metadata, name) or (name,)
        thing = objects.get(str(path[0]))
        if thing is None:
            continue  # random state and the like
        is_tensor = isinstance(metadata.state_dict_metadata.get(name), TensorStorageMetadata)
        (refused if is_tensor and not _is_buffer(thing, path) else taken).append(name)
    if refused:
        shown = ", ".join(refused[:_SHOWN]) + (f" and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else "")
        raise SnapshotError(
            f"the checkpoint of step {manifest.step} was written with {manifest.world_size} ranks, this generation has "
            f"{world_size} or another layout: {shown} differed from rank to rank and are not DTensors: they cannot be "
            f"spread over other ranks. Run with {manifest.world_size} ranks and the same layout"
        )
    return (f"{', '.join(taken[:_SHOWN])} differed from rank to rank: all have rank 0's now",) if taken else ()


def _is_buffer(thing: object, path: tuple[form.PathItem, ...]) -> bool:
    """DDP keeps rank 0's buffers: running means may differ for a step."""
    return isinstance(thing, torch.nn.Module) and str(path[-1]) in dict(thing.named_buffers())


def _load(
    reader: FileSystemReader, metadata: Metadata, wanted: Mapping[str, Stateful], objects: Mapping[str, Stateful]
) -> None:
    """Raises OSError, DamagedFileError, DamagedError, SnapshotError."""
    templates = {keyword: Template(keyword, thing, objects.values(), metadata) for keyword, thing in wanted.items()}
    flat = {name: leaf for template in templates.values() for name, leaf in template.leaves().items()}
    _read(reader, flat)
    trees: dict[str, Any] = {}
    for template in templates.values():
        for name in template.names:
            set_in(trees, template.path(name), flat[name])
    for keyword, thing in wanted.items():
        give_one(keyword, thing, templates[keyword].complete(trees.get(keyword, {})))


def _read(reader: FileSystemReader, flat: dict[str, Any]) -> None:
    """Fill it. Raises OSError, DamagedFileError, DamagedError, SnapshotError."""
    try:
        load_alone(flat, reader, DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False))
    except CheckpointException as error:
        cause = cause_of(error)
        if isinstance(cause, form.DamagedFileError | OSError):
            raise cause from None
        if isinstance(cause, ValueError):  # the planner's: sizes
            raise SnapshotError(f"the checkpoint does not fit: {cause}") from error
        raise DamagedError(f"{reader.path}: {type(cause).__name__}: {cause}") from error
