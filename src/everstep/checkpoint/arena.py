"""Where one rank's snapshots live: a piece of memory with a header page and 2 to 8 buffers.

Answers: which completed steps does this memory hold, and where may the next snapshot be written so that a writer killed
at any instruction never costs a complete one that is still needed. It does not know what a snapshot contains, imports
nothing but the standard library, and never trusts what it reads: the agent inspects memory that a dying worker wrote.
Called by the worker (class `Arena`, one writer per arena), by the agent, by the copies between nodes (`receive`,
`publish_received`: one writer as well) and by what writes to disk.

    page 0         magic, layout version, world size, rank, capacity, buffers; pins; one cell per buffer
    page 1 ...     buffer 0, capacity bytes: the snapshot (`length` bytes, the skeleton last), its table of sums
    ...            buffer 1, ...

A cell is WRITING before the first byte of its buffer changes and COMPLETE after the last one has. Every field is one
aligned 8-byte store. A process that is killed has done a prefix of its stores, so no checksum over the data is needed
for that. Against damage of another kind a complete snapshot is sealed soon after (`seal`).

A pin is a step whose snapshot must stay, set by others than the writer, before or after that step exists. A pinner that
then sees the step COMPLETE has it until it unpins: both sides write before they read, and the writer gives way. Both
read through the kernel, whose counters order the store before it.
"""

import ctypes
import fcntl
import mmap
import os
import threading
from collections.abc import Callable

from everstep.checkpoint import large_pages, page, seal
from everstep.checkpoint.page import (
    COMPLETE,
    EMPTY,
    LAYOUT_VERSION,
    MAX_BUFFERS,
    NUM_BUFFERS,
    NUM_PINS,
    PAGE_BYTES,
    PIN_BACKUP,
    PIN_PERSIST,
    PIN_SPARE,
    PIN_TRUSTED,
    WRITING,
    Contents,
    Snapshot,
    held,
    held_steps,
    inspect,
    invalidate_after,
    offset_of,
    pin,
    pins,
)

__all__ = [
    "COMPLETE",
    "EMPTY",
    "LAYOUT_VERSION",
    "MAX_BUFFERS",
    "NUM_BUFFERS",
    "NUM_PINS",
    "PAGE_BYTES",
    "PIN_BACKUP",
    "PIN_PERSIST",
    "PIN_SPARE",
    "PIN_TRUSTED",
    "WRITING",
    "Arena",
    "ArenaError",
    "Contents",
    "Snapshot",
    "arena_bytes",
    "create",
    "format_arena",
    "held",
    "held_steps",
    "inspect",
    "invalidate_after",
    "offset_of",
    "pin",
    "pins",
    "publish_received",
    "receive",
    "verify",
]


_MADV_POPULATE_WRITE = 23
_POPULATED_BYTES = 2 << 20
"""In one call. It holds the map of the process's memory, and every `mmap` of the program waits for it: 40 to 170 ms
for 16 MiB on a busy machine, 0.1 ms for 2."""


class ArenaError(Exception):
    """This memory is not an arena, or not one that can be used. The message says why."""


def arena_bytes(snapshot_bytes: int, num_buffers: int = NUM_BUFFERS) -> int:
    """Memory needed for buffers of at least `snapshot_bytes` and their seals: what a worker asks the agent for."""
    pages = -(-(page.seal_at(snapshot_bytes) + seal.table_bytes(snapshot_bytes)) // PAGE_BYTES)
    return PAGE_BYTES * (1 + num_buffers * max(pages, 1))


def create(
    num_bytes: int, *, rank: int, world_size: int, num_buffers: int = NUM_BUFFERS, num_present: int = MAX_BUFFERS
) -> int:
    """New empty arena of `num_bytes` in all, its memory really allocated. Raises OSError if there is not enough.

    With `num_present`, only so many buffers are allocated now, and the rest soon after by `allocate`."""
    fd = os.memfd_create(f"everstep-arena-{rank}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, num_bytes)
        # Allocate now: overcommitted memory would kill the rank with SIGBUS in the middle of a step.
        large_pages.allocate(fd, min(num_bytes, PAGE_BYTES + num_present * (num_bytes // num_buffers)))
        # Forbid truncation: it would kill a process that has it mapped with SIGBUS as well.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        format_arena(fd, rank=rank, world_size=world_size, num_buffers=num_buffers)
    except BaseException:
        os.close(fd)
        raise
    return fd


def allocate(fd: int) -> None:
    """Allocate all of its memory. Takes a while; readers and writers may continue meanwhile. Raises OSError."""
    large_pages.allocate(fd, os.fstat(fd).st_size)


def format_arena(fd: int, *, rank: int, world_size: int, num_buffers: int = NUM_BUFFERS) -> None:
    """Make this memory an empty arena, whatever it held. Its size decides the capacity of a buffer."""
    if not NUM_BUFFERS <= num_buffers <= MAX_BUFFERS:
        raise ArenaError(f"{num_buffers} buffers; {NUM_BUFFERS} to {MAX_BUFFERS} are possible")
    pages = os.fstat(fd).st_size // PAGE_BYTES
    capacity_bytes = (pages - 1) // num_buffers * PAGE_BYTES
    if capacity_bytes < PAGE_BYTES:
        raise ArenaError(f"{pages * PAGE_BYTES} bytes are too few for an arena; at least {arena_bytes(1, num_buffers)}")
    os.pwrite(fd, bytes(8), 0)  # no magic: not an arena until the rest is in place
    os.pwrite(fd, page.PINS.pack(*[-1] * NUM_PINS), page.PINS_AT)
    for buffer in range(MAX_BUFFERS):
        os.pwrite(fd, page.CELL.pack(EMPTY, -1, 0, -1, 0, 0, 0, 0), page.cell_at(buffer))
    os.pwrite(fd, page.HEAD.pack(0, LAYOUT_VERSION, world_size, rank, capacity_bytes, num_buffers)[8:], 8)
    os.pwrite(fd, page.MAGIC.to_bytes(8, "little"), 0)


def receive(fd: int, like: Snapshot) -> int:
    """Choose a buffer for a snapshot that comes from elsewhere and mark it incomplete; returns its index.

    Write `like.extent_bytes` bytes from `offset_of` on, then `publish_received`. What arrived of the same snapshot
    before, in a transfer that broke off, is still in the buffer that is returned. Raises ArenaError.
    """
    contents = inspect(fd)
    if contents.why:
        raise ArenaError(contents.why)
    if not 0 < like.skeleton_bytes <= like.length <= like.extent_bytes <= contents.capacity_bytes or like.step < 0:
        raise ArenaError(f"a snapshot of {like.extent_bytes} bytes; a buffer here has {contents.capacity_bytes}")
    begun = (WRITING, like.step, like.length, like.generation)
    index = next((b for b in range(contents.num_buffers) if page.read_cell(fd, b)[:4] == begun), None)
    if index is None:
        index = _choose(contents, pins(fd), None, False)
    if index is None:
        raise ArenaError(f"all {contents.num_buffers} buffers hold snapshots that are needed")
    for field, value in ((page.STATE, WRITING), (page.SEAL, 0), (page.STEP, like.step), (page.LENGTH, like.length)):
        page.write_field(fd, index, field, value)
    page.write_field(fd, index, page.GENERATION, like.generation)
    return index


def publish_received(fd: int, buffer: int, like: Snapshot) -> None:
    """The buffer chosen by `receive` is whole."""
    if page.read_cell(fd, buffer)[:4] != (WRITING, like.step, like.length, like.generation):
        raise ArenaError(f"buffer {buffer} was not made ready for step {like.step}")
    fields = {page.SKELETON: like.skeleton_bytes, page.SKELETON_CRC: like.skeleton_crc, page.SEAL_CRC: like.seal_crc}
    for field, value in {**fields, page.SEAL: like.seal_bytes, page.STATE: COMPLETE}.items():
        page.write_field(fd, buffer, field, value)


def verify(fd: int, snapshot: Snapshot, mapped: memoryview | None = None, num_threads: int = 1) -> str:
    """Empty if the snapshot's bytes are those that were written, or if it is not sealed; otherwise what is wrong. Reads
    all of it: where it is mapped already, or in a mapping of its own."""
    contents = inspect(fd)
    if contents.why:
        return contents.why
    if not snapshot.sealed:
        return ""
    if mapped is not None:
        return _check(mapped, snapshot, num_threads)
    start = offset_of(contents, snapshot.buffer)
    with mmap.mmap(fd, start + contents.capacity_bytes, mmap.MAP_SHARED, mmap.PROT_READ) as memory:
        with memoryview(memory) as view, view[start:] as buffer:
            return _check(buffer, snapshot)


def _check(buffer: memoryview, snapshot: Snapshot, num_threads: int = 1) -> str:
    at = page.seal_at(snapshot.length)
    with buffer[: snapshot.length] as data:
        return seal.check(data, bytes(buffer[at : at + snapshot.seal_bytes]), snapshot.seal_crc, num_threads)


def _choose(
    contents: Contents,
    pinned: tuple[int | None, ...],
    is_candidate: Callable[[int], bool] | None,
    keep_previous: bool,
) -> int | None:
    """A buffer without a complete snapshot, else the oldest that is not needed; None: all are needed."""
    complete = {snapshot.buffer for snapshot in contents.snapshots}
    unused = next((buffer for buffer in range(contents.num_buffers) if buffer not in complete), None)
    if unused is not None:
        return unused
    snapshots = contents.snapshots
    free = [s for s in snapshots[:-1] if s.step not in pinned]
    trusted = pinned[PIN_TRUSTED]
    waiting = [s for s in snapshots if is_candidate is not None and is_candidate(s.step)]
    candidate = [s for s in waiting[-1:] if trusted is None or s.step > trusted]
    previous = list(snapshots[-2:-1]) if keep_previous else []
    # What to give up when there is not room for all: first the candidate, which costs trust that comes later.
    for kept in (candidate + previous, previous, []):
        for snapshot in free:
            if snapshot not in kept:
                return snapshot.buffer
    return None


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
        self.num_buffers = contents.num_buffers
        size_bytes = PAGE_BYTES + self.num_buffers * self.capacity_bytes
        self._memory, begin = large_pages.map_whole(fd, size_bytes)
        self._bytes = memoryview(self._memory)[begin : begin + size_bytes]
        self._words = self._bytes[:PAGE_BYTES].cast("Q")
        self._signed = self._bytes[:PAGE_BYTES].cast("q")
        self._writing: int | None = None
        self._cells = threading.Lock()  # a snapshot is sealed while the next one begins

    def snapshots(self) -> tuple[Snapshot, ...]:
        """Complete snapshots, oldest step first."""
        return inspect(self.fd).snapshots

    def buffer(self, index: int) -> memoryview:
        """The whole memory of one buffer."""
        start = PAGE_BYTES + index * self.capacity_bytes
        return self._bytes[start : start + self.capacity_bytes]

    def begin(
        self,
        step: int,
        generation: int,
        is_candidate: Callable[[int], bool] | None = None,
        *,
        keep_previous: bool = False,
    ) -> int | None:
        """Choose the buffer to write and mark it incomplete; its index, or None: every buffer is needed, skip this one.

        Never the newest complete one, nor a pinned one; nor, where there is room, the newest of the steps of which
        `is_candidate` says that they wait for a verdict, and with `keep_previous` the one before the newest: peers
        whose copy is not over yet when they die have no newer one. After a restore at step k the steps after k are
        invalid already, so the only copy of k is the newest, and stays until another snapshot is complete.
        """
        with self._cells:
            passed_over: tuple[int, ...] = ()
            while True:
                contents = inspect(self.fd)
                index = _choose(contents, pins(self.fd) + passed_over, is_candidate, keep_previous)
                if index is None:
                    return None
                before = next((s.step for s in contents.snapshots if s.buffer == index), None)
                self._store(index, page.STATE, WRITING)
                if before is None or before not in pins(self.fd):
                    break
                self._store(index, page.STATE, COMPLETE)  # pinned meanwhile; nothing but the state had changed
                passed_over += (before,)
            for field, value in ((page.SEAL, 0), (page.STEP, step), (page.GENERATION, generation)):
                self._store(index, field, value)
            self._writing = index
            return index

    def publish(self, length: int, skeleton_bytes: int, skeleton_crc: int) -> Snapshot:
        """The buffer chosen by `begin` is whole. From the last store on it is what a restart would take."""
        index = self._writing
        if index is None or not 0 < skeleton_bytes <= length <= self.capacity_bytes:
            raise ArenaError(f"nothing to publish: begun={index} length={length} skeleton={skeleton_bytes}")
        fields = {
            page.LENGTH: length,
            page.SKELETON: skeleton_bytes,
            page.SKELETON_CRC: skeleton_crc,
            page.STATE: COMPLETE,
        }
        for field, value in fields.items():
            self._store(index, field, value)
        self._writing = None
        return Snapshot(
            buffer=index,
            step=self._signed[page.cell_at(index) // 8 + page.STEP],
            length=length,
            generation=self._signed[page.cell_at(index) // 8 + page.GENERATION],
            skeleton_bytes=skeleton_bytes,
            skeleton_crc=skeleton_crc,
        )

    def retract(self, step: int) -> None:
        """A snapshot that was just published is not what it should be."""
        with self._cells:
            for snapshot in self.snapshots():
                if snapshot.step == step:
                    self._store(snapshot.buffer, page.STATE, EMPTY)

    def seal(
        self, snapshot: Snapshot, is_wanted: Callable[[], bool] = lambda: True, table: bytearray | None = None
    ) -> bool:
        """Put sums behind a complete snapshot; False: it is gone, there is no room, or it is not wanted any more (asked
        after every piece). May run while another snapshot is written. `table` has the sums of an interrupted call, and
        gets those of this one: pass it again to resume."""
        at = page.seal_at(snapshot.length)
        num_bytes = seal.table_bytes(snapshot.length)
        if at + num_bytes > self.capacity_bytes:
            return False
        with self.buffer(snapshot.buffer) as memory, memory[: snapshot.length] as data:
            table = bytearray() if table is None else table
            for number in seal.sums(data, len(table) // seal.SUM_BYTES):
                table += number
                if not is_wanted():
                    return False
            with self._cells:
                if snapshot not in self.snapshots():
                    return False
                memory[at : at + num_bytes] = table
                self._store(snapshot.buffer, page.SEAL_CRC, seal.table_sum(table))
                self._store(snapshot.buffer, page.SEAL, num_bytes)
        return True

    def populate(self) -> None:
        """Map all pages now. Otherwise the first copy into each buffer does, and takes some times as long. Does not
        hold the GIL; to be called on a thread. Kernels before 5.14 do not do it."""
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._bytes))
        madvise = ctypes.CDLL(None).madvise
        for start in range(0, len(self._bytes), _POPULATED_BYTES):
            num_bytes = min(_POPULATED_BYTES, len(self._bytes) - start)
            if madvise(ctypes.c_void_p(base + start), ctypes.c_size_t(num_bytes), _MADV_POPULATE_WRITE):
                return

    def close(self) -> None:
        """Unmap. Memory that is still viewed stays mapped until the last view is released."""
        for view in (self._signed, self._words, self._bytes):
            view.release()
        try:
            self._memory.close()
        except BufferError:
            pass  # a view is alive in a tensor; the mapping goes with it

    def _store(self, index: int, field: int, value: int) -> None:
        """The only way in which a cell changes: one aligned 8-byte store."""
        words = self._signed if field in page.SIGNED else self._words
        words[page.cell_at(index) // 8 + field] = value
