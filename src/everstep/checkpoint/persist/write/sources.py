"""A rank's snapshot in its arena, planned as a part of a checkpoint: which objects, and which piece is where in them.

Called by `writing`. Hashes everything once, at the speed of memory; serialises nothing yet. The parent process must
have pinned the snapshot; whether it still is the same one is checked again at the end (`is_intact`).
"""

import contextlib
import mmap
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from everstep.checkpoint import arena as arenas
from everstep.checkpoint.packing import DamagedError
from everstep.checkpoint.persist.form import form
from everstep.checkpoint.persist.form.splitting import split
from everstep.checkpoint.persist.read.opening import Entry, Opened, open_stored
from everstep.checkpoint.persist.read.streams import Data, Layouts, Packer, piece_key, piece_view, stream_of
from everstep.checkpoint.stored import Stored
from everstep.errors import SnapshotError
from everstep.version import __version__


@dataclass(slots=True)
class Source:
    """One snapshot, mapped. The mapping is private: nothing that happens here can change the arena."""

    fd: int
    rank: int
    world_size: int
    snapshot: arenas.Snapshot
    memory: memoryview

    def is_intact(self) -> bool:
        """Whether the arena still holds the snapshot that was opened."""
        now = arenas.inspect(self.fd).snapshots
        mine = self.snapshot
        return any((s.buffer, s.step, s.generation) == (mine.buffer, mine.step, mine.generation) for s in now)


def open_source(fd: int, step: int, rank: int, world_size: int) -> Source:
    """Raises SnapshotError when the arena does not hold it, or holds something else."""
    contents = arenas.inspect(fd)
    if contents.why:
        raise SnapshotError(f"the snapshot memory of rank {rank} cannot be used: {contents.why}")
    if (contents.rank, contents.world_size) != (rank, world_size):
        raise SnapshotError(
            f"this is the snapshot memory of rank {contents.rank} of {contents.world_size}, "
            f"not of {rank} of {world_size}"
        )
    found = [snapshot for snapshot in contents.snapshots if snapshot.step == step]
    if not found:
        held = [snapshot.step for snapshot in contents.snapshots]
        raise SnapshotError(f"rank {rank} does not hold step {step} (any more); it holds {held}")
    snapshot = max(found, key=lambda one: one.generation)
    if why := arenas.verify(fd, snapshot):
        raise SnapshotError(f"the snapshot of step {step} on rank {rank} is damaged in memory: {why}")
    start = arenas.offset_of(contents, snapshot.buffer)
    mapped = mmap.mmap(fd, start + contents.capacity_bytes, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    memory = memoryview(mapped)[start : start + snapshot.length]
    return Source(fd, rank, world_size, snapshot, memory)


def open_all(sources: Sequence[Source]) -> dict[int, Stored]:
    """The snapshots of a node's ranks, which may hold parts of one another, by rank. Raises SnapshotError."""
    opened: dict[int, Stored] = {}
    for source in sources:
        with _told_as_damaged(source):
            snapshot = source.snapshot
            opened[source.rank] = Stored(source.memory, snapshot.length, snapshot.skeleton_bytes, snapshot.skeleton_crc)
    for source in sources:
        with _told_as_damaged(source):
            missing = [rank for rank in opened[source.rank].partners if rank not in opened]
            if missing:
                raise DamagedError(f"a part of it is with ranks {missing}, which are not written with it")
            opened[source.rank].complete(opened)
    return opened


@contextlib.contextmanager
def _told_as_damaged(source: Source) -> Iterator[None]:
    try:
        yield
    except DamagedError as error:
        raise SnapshotError(
            f"the snapshot of step {source.snapshot.step} on rank {source.rank} is damaged in memory: {error}"
        ) from error


def plan_part(
    source: Source,
    stored: Stored,
    packer: Packer,
    layouts: Layouts,
    generation: int,
    run: str,
    go_on: Callable[[], None],
) -> form.RankPart:
    """The part without its objects' bytes, which `packer` now knows how to make. `go_on` is called for every piece.
    Raises SnapshotError."""
    with _told_as_damaged(source):
        opened = open_stored(stored)
    begins, end, skeleton = stored.whole()
    part = _Part(begins, packer, layouts, go_on)
    # Apart from each other: values and the skeleton change with every step, and differ between ranks.
    part.add_tensors(opened)
    packer.flush()
    part.add_values(opened)
    packer.flush()
    part.add_skeleton(skeleton)
    packer.flush()
    return form.RankPart(
        step=source.snapshot.step,
        generation=generation,
        rank=source.rank,
        world_size=source.world_size,
        length=end + len(skeleton),
        skeleton=form.Skeleton(len(skeleton), zlib.crc32(skeleton), *part.skeleton),
        tensors=tuple(part.tensor(entry, index) for index, entry in enumerate(opened.entries)),
        named=tuple(form.Named(t.path, t.entry, t.sizes, t.offsets, t.is_shard) for t in opened.tensors),
        values=tuple(form.Value(path, *part.values[path]) for path in part.values),
        opaque=tuple(opened.opaque),
        objects={name: packer.objects[name].num_bytes for name in sorted(part.used)},
        run=run,
        everstep=__version__,
        torch=str(torch.__version__),
    )


class _Part:
    """Collects where the packer puts what."""

    def __init__(self, begins: list[int], packer: Packer, layouts: Layouts, go_on: Callable[[], None]) -> None:
        """`begins`: where each tensor is in the rank's snapshot, as it will be put together again."""
        self._go_on = go_on
        self._begins = begins
        self._packer = packer
        self._layouts = layouts
        self.used: set[str] = set()
        self._pieces: dict[int, list[form.Piece]] = {}
        self.values: dict[tuple[form.PathItem, ...], tuple[str, str, int, int]] = {}
        self.skeleton: tuple[str, str, int] = ("", "", 0)

    def tensor(self, entry: Entry, index: int) -> form.Tensor:
        pieces = sorted(self._pieces.get(index, ()), key=lambda piece: piece.at)
        return form.Tensor(str(entry.dtype), entry.sizes, tuple(pieces))

    def add_tensors(self, opened: Opened) -> None:
        for index, entry in enumerate(opened.entries):
            self._pieces[index] = []
            for at, num_bytes, offsets, sizes in split(entry.sizes, entry.strides, entry.dtype.itemsize):
                self._go_on()
                self._add_piece(index, entry, at, num_bytes, offsets, sizes)

    def _add_piece(
        self, index: int, entry: Entry, at: int, num_bytes: int, offsets: tuple[int, ...], sizes: tuple[int, ...]
    ) -> None:
        total = form.checksum(entry.memory[entry.at + at : entry.at + at + num_bytes])
        layout = self._layouts.of(piece_view(entry, at, num_bytes, sizes))

        def place(name: str, stream_at: int) -> None:
            self.used.add(name)
            data_at = stream_at + layout.data_at
            piece = form.Piece(
                self._begins[index] + at,
                num_bytes,
                total,
                name,
                stream_at,
                layout.stream_bytes,
                data_at,
                offsets,
                sizes,
            )
            self._pieces[index].append(piece)

        def make() -> Data:
            return stream_of(piece_view(entry, at, num_bytes, sizes))

        self._packer.add(piece_key(entry, total, sizes, layout), layout.stream_bytes, make, place, size=num_bytes)

    def add_values(self, opened: Opened) -> None:
        for leaf in opened.values:
            try:
                data = stream_of(leaf.value)
            except Exception:  # something of the program's own is in it
                opened.opaque.append(form.name_of(leaf.path))
                continue
            self._add_value(leaf.path, data, form.checksum(data))

    def _add_value(self, path: tuple[form.PathItem, ...], data: Data, total: str) -> None:
        def place(name: str, at: int) -> None:
            self.used.add(name)
            self.values[path] = (total, name, at, len(data))

        self._packer.add(f"value {total}", len(data), lambda: data, place, size=len(data))

    def add_skeleton(self, skeleton: bytes) -> None:
        total = form.checksum(skeleton)

        def place(name: str, at: int) -> None:
            self.used.add(name)
            self.skeleton = (total, name, at)

        self._packer.add(f"raw {total}", len(skeleton), lambda: skeleton, place, size=len(skeleton))
