"""Where one rank's snapshots live: a piece of memory with a header page and two buffers.

Answers: which completed steps does this memory hold, and where may the next snapshot be written so that a
writer killed at any instruction never costs the last complete one. It does not know what a snapshot contains,
imports nothing but the standard library, and never trusts what it reads: the agent inspects memory that a dying
worker wrote. Called by `worker.state` (one writer per arena) and by the agent (`create`, `held_steps`,
`invalidate_after`, `inspect`).

    page 0         magic, layout version, world size, rank, capacity; two cells
    page 1 ...     buffer 0, capacity bytes
    ...            buffer 1, capacity bytes

A cell is WRITING before the first byte of its buffer changes and COMPLETE after the last one has. Every field
is one aligned 8-byte store. A process that is killed has done a prefix of its stores, so no checksum over the
data is needed; the checksum in the cell covers the skeleton, which is unpickled.
"""

import dataclasses
import fcntl
import mmap
import os
import struct
from collections.abc import Iterator

PAGE_BYTES = 4096
LAYOUT_VERSION = 1
NUM_BUFFERS = 2

_MAGIC = int.from_bytes(b"ESARENA\x01", "little")
_HEAD = struct.Struct("<QQQQQ")  # magic, version, world size, rank, capacity
_CELL = struct.Struct("<QqQqQQ")  # state, step, length, generation, skeleton bytes, skeleton crc32
_CELL_AT = (512, 1024)  # apart from each other and from the head: one cache line never holds two of them

EMPTY, WRITING, COMPLETE = 0, 1, 2


class ArenaError(Exception):
    """This memory is not an arena, or not one that can be used. The message says why."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One complete buffer, as its cell describes it."""

    buffer: int
    step: int
    length: int  # bytes of the buffer in use, skeleton included
    generation: int  # which generation wrote it
    skeleton_bytes: int  # the last bytes of `length`
    skeleton_crc: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What was found in a piece of memory. `why` is empty exactly when it is a usable arena."""

    world_size: int = 0
    rank: int = -1
    capacity_bytes: int = 0
    snapshots: tuple[Snapshot, ...] = ()  # complete ones, oldest step first
    why: str = ""


def arena_bytes(snapshot_bytes: int) -> int:
    """Memory needed for two buffers of at least `snapshot_bytes`: what a worker asks the agent for."""
    pages = -(-snapshot_bytes // PAGE_BYTES)
    return PAGE_BYTES * (1 + NUM_BUFFERS * max(pages, 1))


def create(num_bytes: int, *, rank: int, world_size: int) -> int:
    """New empty arena of `num_bytes` in all, its memory really allocated. Raises OSError if there is not enough."""
    fd = os.memfd_create(f"everstep-arena-{rank}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        # Allocated now: memory that is only promised would kill the rank with SIGBUS in the middle of a step.
        os.posix_fallocate(fd, 0, num_bytes)
        # Nobody may cut it under a process that has it mapped: that is SIGBUS as well.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        format_arena(fd, rank=rank, world_size=world_size)
    except BaseException:
        os.close(fd)
        raise
    return fd


def format_arena(fd: int, *, rank: int, world_size: int) -> None:
    """Make this memory an empty arena, whatever it held. Its size decides the capacity of a buffer."""
    pages = os.fstat(fd).st_size // PAGE_BYTES
    capacity_bytes = (pages - 1) // NUM_BUFFERS * PAGE_BYTES
    if capacity_bytes < PAGE_BYTES:
        raise ArenaError(f"{pages * PAGE_BYTES} bytes are too few for an arena; at least {arena_bytes(1)}")
    os.pwrite(fd, bytes(8), 0)  # no magic: not an arena until the rest is in place
    for at in _CELL_AT:
        os.pwrite(fd, _CELL.pack(EMPTY, -1, 0, -1, 0, 0), at)
    os.pwrite(fd, _HEAD.pack(0, LAYOUT_VERSION, world_size, rank, capacity_bytes)[8:], 8)
    os.pwrite(fd, _MAGIC.to_bytes(8, "little"), 0)


def inspect(fd: int) -> Contents:
    """What this memory holds. Never raises for what it finds there: garbage has a `why`."""
    try:
        size_bytes = os.fstat(fd).st_size
        page = os.pread(fd, PAGE_BYTES, 0)
    except OSError as error:
        return Contents(why=f"cannot be read: {error}")
    if len(page) < PAGE_BYTES:
        return Contents(why=f"cut: {size_bytes} bytes, a header page has {PAGE_BYTES}")
    magic, version, world_size, rank, capacity_bytes = _HEAD.unpack_from(page)
    if magic != _MAGIC:
        return Contents(why="not an arena: wrong magic number")
    if version != LAYOUT_VERSION:
        return Contents(why=f"layout version {version}; this everstep reads {LAYOUT_VERSION}")
    if not 0 <= rank < world_size:
        return Contents(why=f"damaged header: rank {rank} of {world_size}")
    if capacity_bytes % PAGE_BYTES or not 0 < capacity_bytes <= (size_bytes - PAGE_BYTES) // NUM_BUFFERS:
        return Contents(why=f"cut: {size_bytes} bytes cannot hold two buffers of {capacity_bytes}")
    found = sorted(_complete(page, capacity_bytes), key=lambda snapshot: (snapshot.step, snapshot.generation))
    return Contents(world_size=world_size, rank=rank, capacity_bytes=capacity_bytes, snapshots=tuple(found))


def held_steps(fd: int) -> tuple[int, ...]:
    """Completed steps that can be restored from here, oldest first; () for garbage (`inspect` says why)."""
    return tuple(sorted({snapshot.step for snapshot in inspect(fd).snapshots}))


def invalidate_after(fd: int, step: int) -> None:
    """Forget snapshots of steps after `step`: the job goes on from there, and what came next is no longer true.

    With -1 everything is forgotten. Safe whenever nobody writes to the arena, and as often as one likes.
    """
    for snapshot in inspect(fd).snapshots:
        if snapshot.step > step:
            os.pwrite(fd, EMPTY.to_bytes(8, "little"), _CELL_AT[snapshot.buffer])


def _complete(page: bytes, capacity_bytes: int) -> Iterator[Snapshot]:
    for buffer, at in enumerate(_CELL_AT):
        state, step, length, generation, skeleton_bytes, crc = _CELL.unpack_from(page, at)
        if state == COMPLETE and step >= 0 and 0 < skeleton_bytes <= length <= capacity_bytes:
            yield Snapshot(
                buffer=buffer,
                step=step,
                length=length,
                generation=generation,
                skeleton_bytes=skeleton_bytes,
                skeleton_crc=crc,
            )


class Arena:
    """An arena mapped into the one process that writes it. Raises ArenaError if it is none."""

    def __init__(self, fd: int) -> None:
        contents = inspect(fd)
        if contents.why:
            raise ArenaError(contents.why)
        self.fd = fd
        self.rank = contents.rank
        self.world_size = contents.world_size
        self.capacity_bytes = contents.capacity_bytes
        size_bytes = PAGE_BYTES + NUM_BUFFERS * self.capacity_bytes
        self._memory = mmap.mmap(fd, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._bytes = memoryview(self._memory)
        self._words = self._bytes[:PAGE_BYTES].cast("Q")
        self._signed = self._bytes[:PAGE_BYTES].cast("q")
        self._writing: int | None = None

    def snapshots(self) -> tuple[Snapshot, ...]:
        """Complete snapshots, oldest step first."""
        return inspect(self.fd).snapshots

    def buffer(self, index: int) -> memoryview:
        """The whole memory of buffer 0 or 1."""
        start = PAGE_BYTES + index * self.capacity_bytes
        return self._bytes[start : start + self.capacity_bytes]

    def begin(self, step: int, generation: int) -> int:
        """Choose the buffer to write and mark it incomplete; returns its index.

        Never the newest complete one. After a restore at step k the steps after k are invalid already, so the
        only copy of k is the newest, and stays until another snapshot is complete.
        """
        held = self.snapshots()
        index = 1 - held[-1].buffer if held else 0
        self._store(index, 0, WRITING)
        self._store(index, 1, step)
        self._store(index, 3, generation)
        self._writing = index
        return index

    def publish(self, length: int, skeleton_bytes: int, skeleton_crc: int) -> None:
        """The buffer chosen by `begin` is whole. From the last store on it is what a restart would take."""
        index = self._writing
        if index is None or not 0 < skeleton_bytes <= length <= self.capacity_bytes:
            raise ArenaError(f"nothing to publish: begun={index} length={length} skeleton={skeleton_bytes}")
        self._store(index, 2, length)
        self._store(index, 4, skeleton_bytes)
        self._store(index, 5, skeleton_crc)
        self._store(index, 0, COMPLETE)
        self._writing = None

    def close(self) -> None:
        """Unmap. Memory that somebody still looks at stays mapped until they let go."""
        for view in (self._signed, self._words, self._bytes):
            view.release()
        try:
            self._memory.close()
        except BufferError:
            pass  # a view is alive in a tensor; the mapping goes with it

    def _store(self, index: int, field: int, value: int) -> None:
        """The only way in which a cell changes: one aligned 8-byte store."""
        words = self._signed if field in (1, 3) else self._words
        words[_CELL_AT[index] // 8 + field] = value
