"""A checkpoint into the objects of a State.

Answers: what did these objects look like at that step. With the same number of ranks and the same layout the snapshot
is put together as it was in memory, so a restart from disk is as exact as one from memory; otherwise, and for
checkpoints that torch.distributed.checkpoint wrote, `resharding` does it. Every byte that is used is checked first.
Called by `worker.snapshots.state` through `load_into`; needs no process group and waits for no other rank.
"""

import mmap
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import torch

from everstep.checkpoint.packing import DamagedError
from everstep.checkpoint.persist.form import form
from everstep.checkpoint.persist.read.giving import DDP_ORDER, OWN, RANDOM, Loaded, Stateful, give_one
from everstep.checkpoint.persist.store.files import locate, put_aside, read_manifest, read_object, read_part
from everstep.checkpoint.persist.store.storage import Storage, sentence
from everstep.checkpoint.stored import Stored
from everstep.errors import SnapshotError

_NUM_THREADS = 4


def load_into(path: str, objects: Mapping[str, Stateful], *, rank: int, world_size: int) -> Loaded:
    """Give every object its state at that step.

    Raises DamagedError when the checkpoint is not what was written, OSError when it cannot be read (from here, now),
    both naming the file, and SnapshotError when it is whole and does not fit.
    """
    storage, folder = locate(path)
    try:
        manifest = read_manifest(storage, folder)
        if manifest is None:
            from everstep.checkpoint.persist.read.resharding import load_foreign

            return load_foreign(storage, folder, objects)
        part = read_part(storage, folder, manifest, rank) if manifest.world_size == world_size else None
        if part is None or not _has_same_layout(part, objects):
            from everstep.checkpoint.persist.read.resharding import load_resharded

            return load_resharded(storage, folder, manifest, objects, rank=rank, world_size=world_size)
        stored = read_snapshot(storage, part)
    except form.DamagedFileError as error:
        raise DamagedError(f"checkpoint {path} is damaged: {error}") from error
    except OSError as error:
        raise OSError(f"checkpoint {path} cannot be read: {sentence(error, path)}") from error
    return _give(stored, objects, manifest.step)


def read_snapshot(storage: Storage, part: form.RankPart) -> Stored:
    """The rank's snapshot as it was in memory. Raises OSError, DamagedFileError."""
    memory = memoryview(mmap.mmap(-1, part.length))
    wanted: dict[str, list[form.Piece]] = {part.skeleton.object: []}
    for tensor in part.tensors:
        for piece in tensor.pieces:
            wanted.setdefault(piece.object, []).append(piece)

    def fill(name: str) -> None:
        data = read_object(storage, name, part.objects.get(name))
        for piece in wanted[name]:
            raw = data[piece.data_at : piece.data_at + piece.num_bytes]
            _check_piece(storage, name, raw, piece.sum)
            memory[piece.at : piece.at + piece.num_bytes] = raw
        if name == part.skeleton.object:
            skeleton = part.skeleton
            raw = data[skeleton.data_at : skeleton.data_at + skeleton.num_bytes]
            _check_piece(storage, name, raw, skeleton.sum)
            memory[part.length - skeleton.num_bytes : part.length] = raw

    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        list(pool.map(fill, wanted))
    return Stored(memory, part.length, part.skeleton.num_bytes, part.skeleton.crc)


def _check_piece(storage: Storage, content: str, raw: memoryview, expected: str) -> None:
    if form.checksum(raw) != expected:
        put_aside(storage, content)  # whole by itself, and not what its name says
        raise form.DamagedFileError(form.object_name(content), "holds other bytes than the checkpoint refers to")


def _has_same_layout(part: form.RankPart, objects: Mapping[str, Stateful]) -> bool:
    """Whether this rank's shards are the blocks that it held then."""
    if not any(named.is_shard for named in part.named) and not any(map(_is_sharded, objects.values())):
        return True
    from everstep.checkpoint.persist.read.resharding import same_shards

    return same_shards(part, objects)


def _is_sharded(thing: object) -> bool:
    """Whether its parameters are sharded: state_dict() may be expensive."""
    return isinstance(thing, torch.nn.Module) and any(hasattr(p, "__create_chunk_list__") for p in thing.parameters())


def _give(stored: Stored, objects: Mapping[str, Stateful], step: int) -> Loaded:
    missing = sorted(set(objects) - set(stored.names))
    gone = sorted(set(stored.names) - set(objects) - OWN)
    if missing or gone:
        raise SnapshotError(
            f"State has other keywords than when the checkpoint of step {step} was written: "
            f"new: {missing}, gone: {gone}. Use the same ones, or start a new run"
        )
    for name, thing in objects.items():
        give_one(name, thing, stored.load(name))
    own = {name: stored.load(name) for name in OWN if name in stored.names}
    return Loaded(step=step, random=own.get(RANDOM), ddp_order=own.get(DDP_ORDER))
