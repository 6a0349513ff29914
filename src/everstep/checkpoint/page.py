"""The header page of an arena: which snapshots are whole, and which of them must stay.

Answers what a piece of memory claims about itself. It never trusts it: the agent reads memory that a dying worker
wrote, and never raises for what it finds. Only the standard library. The layout is drawn in `checkpoint.arena`, through
which all other modules come.
"""

import dataclasses
import os
import struct
from collections.abc import Iterator

from everstep.checkpoint import seal

PAGE_BYTES = 4096
LAYOUT_VERSION = 2
NUM_BUFFERS = 2
"""The least that is safe: one is written while the other holds the newest."""

MAX_BUFFERS = 8
NUM_PINS = 4
PIN_TRUSTED, PIN_BACKUP, PIN_PERSIST, PIN_SPARE = range(NUM_PINS)

MAGIC = int.from_bytes(b"ESARENA\x01", "little")
HEAD = struct.Struct("<QQQQQQ")  # magic, version, world size, rank, capacity, buffers
PINS = struct.Struct(f"<{NUM_PINS}q")  # -1: nothing pinned
PINS_AT = 256
CELL = struct.Struct("<QqQqQQQQ")  # state, step, length, generation, skeleton bytes, skeleton crc32, seal crc32, seal
CELLS_AT = 512
CELL_STRIDE = 128  # one cache line never holds two cells
STATE, STEP, LENGTH, GENERATION, SKELETON, SKELETON_CRC, SEAL_CRC, SEAL = range(8)
SIGNED = (STEP, GENERATION)
_NUM_LOOKS = 20

EMPTY, WRITING, COMPLETE = 0, 1, 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One complete buffer, as its cell describes it."""

    buffer: int
    step: int
    length: int  # bytes of the buffer in use, skeleton included, seal not
    generation: int  # which generation wrote it
    skeleton_bytes: int  # the last bytes of `length`
    skeleton_crc: int
    seal_bytes: int = 0  # of the table of sums, which begins at the next multiple of 8 after `length`; 0: not sealed
    seal_crc: int = 0

    @property
    def sealed(self) -> bool:
        return self.seal_bytes > 0

    @property
    def extent_bytes(self) -> int:
        """From the beginning of the buffer: what a copy elsewhere must have, the seal included."""
        return seal_at(self.length) + self.seal_bytes if self.sealed else self.length


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The contents of a piece of memory. `why` is empty exactly when it is a usable arena."""

    world_size: int = 0
    rank: int = -1
    capacity_bytes: int = 0
    num_buffers: int = 0
    snapshots: tuple[Snapshot, ...] = ()  # complete ones, oldest step first
    why: str = ""


def inspect(fd: int) -> Contents:
    """Inspect this memory. Never raises for what it finds there: garbage has a `why`."""
    try:
        size_bytes = os.fstat(fd).st_size
        page = _steady_page(fd)
    except OSError as error:
        return Contents(why=f"cannot be read: {error}")
    if len(page) < PAGE_BYTES:
        return Contents(why=f"cut: {size_bytes} bytes, a header page has {PAGE_BYTES}")
    magic, version, world_size, rank, capacity_bytes, num_buffers = HEAD.unpack_from(page)
    if magic != MAGIC:
        return Contents(why="not an arena: wrong magic number")
    if version != LAYOUT_VERSION:
        return Contents(why=f"layout version {version}; this everstep reads {LAYOUT_VERSION}")
    if not 0 <= rank < world_size:
        return Contents(why=f"damaged header: rank {rank} of {world_size}")
    if not NUM_BUFFERS <= num_buffers <= MAX_BUFFERS:
        return Contents(why=f"damaged header: {num_buffers} buffers")
    if capacity_bytes % PAGE_BYTES or not 0 < capacity_bytes <= (size_bytes - PAGE_BYTES) // num_buffers:
        return Contents(why=f"cut: {size_bytes} bytes cannot hold {num_buffers} buffers of {capacity_bytes}")
    found = sorted(_complete(page, capacity_bytes, num_buffers), key=lambda s: (s.step, s.generation))
    return Contents(
        world_size=world_size,
        rank=rank,
        capacity_bytes=capacity_bytes,
        num_buffers=num_buffers,
        snapshots=tuple(found),
    )


def _steady_page(fd: int) -> bytes:
    """The header page as it was at one moment: a writer that is at work may change it while it is being read."""
    page = os.pread(fd, PAGE_BYTES, 0)
    for _ in range(_NUM_LOOKS):
        again = os.pread(fd, PAGE_BYTES, 0)
        if again == page:
            break
        page = again
    return page


def offset_of(contents: Contents, buffer: int) -> int:
    """Where a buffer begins in the file. A copy takes `Snapshot.extent_bytes` from there."""
    return PAGE_BYTES + buffer * contents.capacity_bytes


def held_steps(fd: int) -> tuple[int, ...]:
    """Completed steps that can be restored from here, oldest first; () for garbage (`inspect` says why)."""
    return tuple(sorted({snapshot.step for snapshot in inspect(fd).snapshots}))


def held(fd: int) -> tuple[tuple[int, int], ...]:
    """(step, generation that wrote it), oldest step first; of a step that is there twice, the newer generation."""
    return tuple({snapshot.step: snapshot.generation for snapshot in inspect(fd).snapshots}.items())


def invalidate_after(fd: int, step: int) -> None:
    """Forget snapshots of steps after `step`: the job resumes there, and later steps are no longer true.

    With -1 everything is forgotten. Safe whenever nothing writes to the arena, and idempotent.
    """
    for snapshot in inspect(fd).snapshots:
        if snapshot.step > step:
            write_field(fd, snapshot.buffer, STATE, EMPTY)


def pin(fd: int, which: int, step: int | None) -> None:
    """From now on the snapshot of `step` stays; None: nothing is pinned. Look with `inspect` afterwards whether it is
    there: a snapshot that was given up in the same moment is not, and is never half there."""
    if not 0 <= which < NUM_PINS:
        raise ValueError(f"pin {which}; there are {NUM_PINS}")
    os.pwrite(fd, struct.pack("<q", -1 if step is None else step), PINS_AT + 8 * which)


def pins(fd: int) -> tuple[int | None, ...]:
    """The step of each pin."""
    data = os.pread(fd, PINS.size, PINS_AT)
    if len(data) < PINS.size:
        return (None,) * NUM_PINS
    return tuple(None if step < 0 else step for step in PINS.unpack(data))


def cell_at(buffer: int) -> int:
    return CELLS_AT + CELL_STRIDE * buffer


def seal_at(length: int) -> int:
    return -(-length // 8) * 8


def read_cell(fd: int, buffer: int) -> tuple[int, ...]:
    return CELL.unpack(os.pread(fd, CELL.size, cell_at(buffer)))


def write_field(fd: int, buffer: int, field: int, value: int) -> None:
    os.pwrite(fd, struct.pack("<q" if field in SIGNED else "<Q", value), cell_at(buffer) + 8 * field)


def _complete(page: bytes, capacity_bytes: int, num_buffers: int) -> Iterator[Snapshot]:
    for buffer in range(num_buffers):
        state, step, length, generation, skeleton_bytes, crc, seal_crc, sealed = CELL.unpack_from(page, cell_at(buffer))
        if state != COMPLETE or step < 0 or not 0 < skeleton_bytes <= length <= capacity_bytes:
            continue
        is_sealed = sealed == seal.table_bytes(length) and seal_at(length) + sealed <= capacity_bytes
        yield Snapshot(
            buffer=buffer,
            step=step,
            length=length,
            generation=generation,
            skeleton_bytes=skeleton_bytes,
            skeleton_crc=crc,
            seal_bytes=sealed if is_sealed else 0,
            seal_crc=seal_crc if is_sealed else 0,
        )
