"""Is every byte of a checkpoint what was written?

Answers: the problems of one checkpoint, each naming its file. `deep` reads everything, and loads every piece of a
tensor as torch does with `weights_only`, so that nothing in the files is run; without, only the small files are read
and the others measured, without torch.
Called by `everstep ckpt verify`. Changes nothing, but that damaged pieces are put aside.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from everstep.checkpoint.persist.form import form
from everstep.checkpoint.persist.store.files import put_aside, read_object, read_part
from everstep.checkpoint.persist.store.plain import SMALL_BYTES
from everstep.checkpoint.persist.store.storage import Storage, open_storage, sentence
from everstep.checkpoint.persist.store.striking import STRUCK, reason

OnProgress = Callable[[int, int], None]
"""(bytes done, bytes in all)."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # the file, relative to the root
    why: str


def verify(
    root: str, step: int, *, deep: bool = True, on_progress: OnProgress = lambda _done, _total: None
) -> list[Problem]:
    """Empty: it is whole."""
    storage, folder = open_storage(root), form.step_name(step)
    try:
        return list(_problems(storage, folder, step, deep=deep, on_progress=on_progress))
    except form.DamagedFileError as error:
        return [Problem(name=error.name, why=error.why)]
    except OSError as error:
        return [Problem(name=folder, why=f"cannot be read: {sentence(error, storage.root)}")]


@dataclass(slots=True)
class _Use:
    """The contents of an object, by what the ranks' files report of it."""

    size: int
    pieces: dict[int, tuple[form.Piece, str]] = field(default_factory=dict)  # with their dtype, by stream_at
    values: dict[int, form.Value] = field(default_factory=dict)
    skeletons: list[form.Skeleton] = field(default_factory=list)


def _problems(storage: Storage, folder: str, step: int, *, deep: bool, on_progress: OnProgress) -> Iterator[Problem]:
    name = f"{folder}/{form.MANIFEST}"
    try:
        manifest = form.unseal(name, storage.read(name, SMALL_BYTES), form.Manifest)
    except FileNotFoundError:
        yield Problem(name=name, why="is missing: the checkpoint is not whole")
        return
    if manifest.step != step:
        yield Problem(name=name, why=f"is that of step {manifest.step}")
    if len(manifest.parts) != manifest.world_size:
        yield Problem(name=name, why=f"names {len(manifest.parts)} parts for {manifest.world_size} ranks")
        return
    struck = reason(storage, folder, manifest)
    if struck:
        yield Problem(name=f"{folder}/{STRUCK}", why=struck)
    uses: dict[str, _Use] = {}
    for rank in range(manifest.world_size):
        try:
            _collect(read_part(storage, folder, manifest, rank), uses)
        except form.DamagedFileError as error:
            yield Problem(name=error.name, why=error.why)
    yield from _check_metadata(storage, folder, manifest)
    total, done = sum(use.size for use in uses.values()), 0
    for content, use in uses.items():
        yield from _check_object(storage, content, use, deep=deep)
        done += use.size
        on_progress(done, total)


def _collect(part: form.RankPart, uses: dict[str, _Use]) -> None:
    for content, size in part.objects.items():
        uses.setdefault(content, _Use(size))
    for tensor in part.tensors:
        for piece in tensor.pieces:
            uses[piece.object].pieces[piece.stream_at] = (piece, tensor.dtype)
    for value in part.values:
        uses[value.object].values[value.stream_at] = value
    uses[part.skeleton.object].skeletons.append(part.skeleton)


def _check_metadata(storage: Storage, folder: str, manifest: form.Manifest) -> Iterator[Problem]:
    name = f"{folder}/{form.METADATA}"
    try:
        found = form.checksum_of(storage.chunks(name))
    except FileNotFoundError:
        yield Problem(name=name, why="is missing")
        return
    if found != manifest.metadata:
        yield Problem(name=name, why="its checksum is not that of the manifest")


def _check_object(storage: Storage, content: str, use: _Use, *, deep: bool) -> Iterator[Problem]:
    name = form.object_name(content)
    if not deep:
        found = storage.size(name)
        if found != use.size:
            what = "is missing" if found is None else f"has {found:,} bytes instead of {use.size:,}"
            yield Problem(name=name, why=what)
        return
    try:
        data = read_object(storage, content, use.size)
        why = _why_wrong(data, use)
        if why:
            put_aside(storage, content)
    except form.DamagedFileError as error:
        why = error.why
    except OSError as error:
        why = f"cannot be read: {sentence(error, storage.root)}"
    if why:
        yield Problem(name=name, why=why)


def _why_wrong(data: memoryview, use: _Use) -> str:
    """The file is whole; is it the one that is meant, and does it load."""
    try:
        return next(_wrong(data, use), "")
    except form.DamagedFileError as error:
        return error.why


def _wrong(data: memoryview, use: _Use) -> Iterator[str]:
    from everstep.checkpoint.persist.read.streams import load_tensor

    for piece, dtype in use.pieces.values():
        if form.checksum(data[piece.data_at : piece.data_at + piece.num_bytes]) != piece.sum:
            yield "holds other bytes than the checkpoint refers to"
        tensor = load_tensor(data[piece.stream_at : piece.stream_at + piece.stream_bytes])
        if (str(tensor.dtype), tuple(tensor.shape)) != (dtype, piece.sizes):
            yield f"loads as {tensor.dtype} {tuple(tensor.shape)} instead of {dtype} {piece.sizes}"
    for value in use.values.values():
        stream = data[value.stream_at : value.stream_at + value.stream_bytes]
        if form.checksum(stream) != value.sum:
            yield "holds other bytes than the checkpoint refers to"
    for skeleton in use.skeletons:
        raw = data[skeleton.data_at : skeleton.data_at + skeleton.num_bytes]
        if form.checksum(raw) != skeleton.sum or zlib.crc32(raw) != skeleton.crc:
            yield "holds other bytes than the checkpoint refers to"
