"""The side that takes the snapshot: pieces into an arena, published and sealed when all of them are there and right.

A piece is written as it arrives and counts when its sum is right; until all do, the buffer is marked incomplete. A
piece that this node has already, in an older copy or in the memory of a rank of its own that holds the same, is
copied from there, with the same care.
"""

import dataclasses
from collections.abc import Callable, Sequence

from everstep.checkpoint import arena, seal
from everstep.checkpoint.transport import frames
from everstep.checkpoint.transport.blocks import Blocks, read, write
from everstep.checkpoint.transport.outcome import Refusal
from everstep.checkpoint.transport.stream import Stream, StreamError

Known = dict[int, bytes]
"""Piece: the sum of what lies there. Only of what was compared with it when it was written."""


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """Where pieces may lie on this node already: the buffer of a complete snapshot. The descriptor is the caller's."""

    fd: int
    start: int
    sums: Known


def sources_in(fd: int, is_of_use: Callable[[arena.Snapshot], bool]) -> list[Source]:
    """Sealed snapshots of an arena, the newest first."""
    contents = arena.inspect(fd)
    found = []
    for snapshot in reversed(contents.snapshots):
        if snapshot.sealed and is_of_use(snapshot):
            start = arena.offset_of(contents, snapshot.buffer)
            table = bytearray(snapshot.seal_bytes)
            read(fd, start + snapshot.extent_bytes - snapshot.seal_bytes, memoryview(table))
            sums = {index // seal.SUM_BYTES: bytes(table[index : index + seal.SUM_BYTES]) for index in _starts(table)}
            found.append(Source(fd, start, sums))
    return found


class Incoming:
    """One snapshot on its way into one arena; several connections may follow each other. One thread at a time."""

    def __init__(self, fd: int, offer: frames.Offer, known: dict[int, Known] | None = None) -> None:
        """`known`: buffer of this arena: what lies in it; kept up to date, so that the next snapshot can use it.
        Raises Refusal if the arena cannot take the snapshot."""
        contents = arena.inspect(fd)
        if contents.why or (contents.rank, contents.world_size) != (offer.rank, offer.world_size):
            raise Refusal(f"the memory here is {contents.why or f'for rank {contents.rank} of {contents.world_size}'}")
        try:
            self.buffer = arena.receive(fd, _snapshot(offer, table=b"", buffer=-1))
        except arena.ArenaError as error:
            raise Refusal(str(error)) from error
        self.offer = offer
        self._fd = fd
        self._contents = contents
        self._start = arena.offset_of(contents, self.buffer)
        self._here = {} if known is None else known.setdefault(self.buffer, {})
        self._sources = sources_in(fd, lambda snapshot: snapshot.buffer != self.buffer)
        self._right: dict[int, bytes] = {}  # pieces of this offer that are in place
        self._blocks = Blocks()

    def look_in(self, sources: Sequence[Source]) -> None:
        """Other places where pieces may lie; open for as long as this is used."""
        self._sources += sources

    def run(self, stream: Stream, publish: Callable[[], None]) -> None:
        """Take what is missing, `publish()`, and confirm to the other side. What has arrived stays if this ends early.
        Raises StreamError; Refusal if the other side took the snapshot back, or `publish` raised it."""
        frames.say(stream, frames.Known(), self._table())
        while True:
            self._take(stream)
            missing = [index for index in range(self.offer.num_pieces) if index not in self._right]
            if not missing:
                break
            frames.say(stream, frames.Again(pieces=tuple(missing[: frames.MOST_AGAIN])))
        try:
            publish()
        except Refusal as refusal:
            frames.say(stream, frames.Refused(why=str(refusal)))
            raise
        frames.say(stream, frames.Stored())

    def publish(self) -> None:
        """Seal it; from now on it is a snapshot like any other in this arena. Raises Refusal."""
        table = b"".join(self._right[index] for index in range(self.offer.num_pieces))
        snapshot = _snapshot(self.offer, table=table, buffer=self.buffer)
        if snapshot.extent_bytes > self._contents.capacity_bytes:
            snapshot = _snapshot(self.offer, table=b"", buffer=self.buffer)
        else:
            write(self._fd, self._start + snapshot.extent_bytes - snapshot.seal_bytes, table)
        try:
            arena.publish_received(self._fd, self.buffer, snapshot)
        except arena.ArenaError as error:
            raise Refusal(str(error)) from error

    def _table(self) -> bytes:
        """Per piece the sums of those that are here: in place, then in the sources, the likeliest first."""
        table = []
        for index in range(self.offer.num_pieces):
            found = (sums.get(index) for sums in (self._here, *(source.sums for source in self._sources)))
            table.append(frames.entry(filter(None, found)))
        return b"".join(table)

    def _take(self, stream: Stream) -> None:
        """Pieces up to the end of a round. A damaged one is left out, and asked for again."""
        while True:
            index, kind, sum_ = frames.announced(stream)
            match kind:
                case frames.END:
                    return
                case frames.TORN:
                    raise Refusal("the snapshot was overwritten while it was sent")
                case frames.DAMAGED:
                    raise Refusal("the snapshot is damaged over there: it does not match its seal")
            if kind not in (frames.DATA, frames.SAME) or index >= self.offer.num_pieces:
                raise StreamError(f"sent piece {index} of {self.offer.num_pieces}, of kind {kind}")
            if kind == frames.DATA:
                self._put(index, sum_, lambda view, _: stream.receive_into(view))
            else:
                self._copy(index, sum_)

    def _copy(self, index: int, sum_: bytes) -> None:
        """From where it lies already. It may have changed meanwhile; then it is asked for."""
        start, length = self.offer.piece(index)
        if self._here.get(index) == sum_:
            if self._blocks.sum_of(self._fd, self._start + start, length, index) == sum_:
                self._right[index] = sum_
            return
        source = next((s for s in self._sources if s.sums.get(index) == sum_), None)
        if source is not None:
            self._put(index, sum_, lambda view, at: read(source.fd, source.start + start + at, view))

    def _put(self, index: int, sum_: bytes, take: Callable[[memoryview, int], None]) -> None:
        start, length = self.offer.piece(index)
        self._here.pop(index, None)
        self._right.pop(index, None)
        found = self._blocks.carry(
            length, index, take, lambda view, at: write(self._fd, self._start + start + at, view)
        )
        if found == sum_:
            self._here[index] = self._right[index] = sum_


def _snapshot(offer: frames.Offer, *, table: bytes, buffer: int) -> arena.Snapshot:
    return arena.Snapshot(
        buffer=buffer,
        step=offer.step,
        length=offer.length,
        generation=offer.generation,
        skeleton_bytes=offer.skeleton_bytes,
        skeleton_crc=offer.skeleton_crc,
        seal_bytes=len(table),
        seal_crc=seal.table_sum(table) if table else 0,
    )


def _starts(table: bytearray) -> range:
    return range(0, len(table), seal.SUM_BYTES)
