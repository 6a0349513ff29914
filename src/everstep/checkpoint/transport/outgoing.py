"""The side that has the snapshot: pieces out of an arena, whether they are pushed or were asked for.

The sums of a sealed snapshot lie behind it, so its bytes go from shared memory to the network without being looked at.
A rank may overwrite a buffer at any moment (the sender pins it, but a pin can come too late). So the cell is checked
after the last piece as well, and a snapshot that has changed is never published on the other side.
"""

import os
from collections.abc import Iterable

from everstep.checkpoint import arena, seal
from everstep.checkpoint.transport import frames
from everstep.checkpoint.transport.blocks import Blocks
from everstep.checkpoint.transport.outcome import Refusal
from everstep.checkpoint.transport.pacing import Limiter
from everstep.checkpoint.transport.stream import Stream, StreamError

_MOST_ROUNDS = 3
"""What arrived damaged so often is damaged on the way again. A round that asks only for pieces which were not sent
before (the other side meant to have them, and they were overwritten there) is progress, and not counted."""


class Outgoing:
    """One snapshot in an arena. The descriptor is the caller's, and stays open for as long as this is used."""

    def __init__(self, fd: int, rank: int, snapshot: arena.Snapshot) -> None:
        """Raises Refusal if it is not there, or not what it was."""
        contents = arena.inspect(fd)
        if contents.why or contents.rank != rank:
            raise Refusal(f"the memory of rank {rank} is {contents.why or f'that of rank {contents.rank}'}")
        self._fd = fd
        self._snapshot = self._find(contents, snapshot.buffer, snapshot.step, snapshot.generation)  # sealed by now?
        self._start = arena.offset_of(contents, snapshot.buffer)
        self._blocks = Blocks()
        self._table = self._sealed_table()
        self.sent_bytes = 0
        self.offer = frames.Offer(
            rank=rank,
            world_size=contents.world_size,
            capacity_bytes=contents.capacity_bytes,
            step=self._snapshot.step,
            generation=self._snapshot.generation,
            length=self._snapshot.length,
            skeleton_bytes=self._snapshot.skeleton_bytes,
            skeleton_crc=self._snapshot.skeleton_crc,
        )

    def send(self, stream: Stream, limiter: Limiter) -> None:
        """All that the other side does not have; returns when it is published there. Raises Refusal or StreamError."""
        known = stream.receive(frames.ENTRY_BYTES * self.offer.num_pieces)
        pieces: Iterable[int] = range(self.offer.num_pieces)
        sent: set[int] = set()
        num_wrong = 0
        while num_wrong < _MOST_ROUNDS:
            sent |= self._send(stream, limiter, pieces, known)
            answer = frames.hear(stream, frames.Stored, frames.Again)
            if isinstance(answer, frames.Stored):
                return
            pieces, known = self._asked_again(answer), b""
            num_wrong += not sent.isdisjoint(pieces)
            self._look_for_damage(stream, pieces)
        raise StreamError(f"misses pieces after {_MOST_ROUNDS} attempts")

    def _send(self, stream: Stream, limiter: Limiter, pieces: Iterable[int], known: bytes) -> set[int]:
        """Returns those whose bytes were sent."""
        sent = set()
        for index in pieces:
            start, length = self.offer.piece(index)
            sum_ = _entry(self._table, index) or self._blocks.sum_of(self._fd, self._start + start, length, index)
            if frames.is_offered(known, index, sum_):
                frames.announce(stream, index, frames.SAME, sum_)
                continue
            sent.add(index)
            frames.announce(stream, index, frames.DATA, sum_)
            self._send_data(stream, limiter, self._start + start, length)
        self._check(stream)
        frames.announce(stream, 0, frames.END)
        return sent

    def _send_data(self, stream: Stream, limiter: Limiter, at: int, length: int) -> None:
        end = at + length
        step_bytes = limiter.piece_bytes(length)
        while at < end:
            num_bytes = min(step_bytes, end - at)
            limiter.take(num_bytes, stream.is_aborted)
            stream.send_file(self._fd, at, num_bytes)
            self.sent_bytes += num_bytes
            at += num_bytes

    def _check(self, stream: Stream) -> None:
        """Check that the snapshot is still there; if not, notify the other side and raise."""
        ours = self._snapshot
        try:
            self._find(arena.inspect(self._fd), ours.buffer, ours.step, ours.generation)
        except Refusal:
            frames.announce(stream, 0, frames.TORN)
            raise

    def _find(self, contents: arena.Contents, buffer: int, step: int, generation: int) -> arena.Snapshot:
        for found in contents.snapshots:
            if (found.buffer, found.step, found.generation) == (buffer, step, generation):
                return found
        raise Refusal(f"the snapshot of rank {contents.rank} at step {step} is gone")

    def _sealed_table(self) -> bytes:
        """The table of sums; empty if the snapshot is not sealed yet."""
        snapshot = self._snapshot
        if not snapshot.sealed:
            return b""
        at = self._start + snapshot.extent_bytes - snapshot.seal_bytes
        table = os.pread(self._fd, snapshot.seal_bytes, at)
        if len(table) != snapshot.seal_bytes or seal.table_sum(table) != snapshot.seal_crc:
            raise Refusal("the snapshot is damaged here: its table of sums is not the one that was written")
        return table

    def _asked_again(self, answer: frames.Again) -> list[int]:
        pieces = sorted(set(answer.pieces))
        if not pieces or pieces[0] < 0 or pieces[-1] >= self.offer.num_pieces:
            raise StreamError(f"asked for pieces of {self.offer.num_pieces} that do not exist")
        return pieces

    def _look_for_damage(self, stream: Stream, pieces: Iterable[int]) -> None:
        """A piece that did not match its seal over there may not match it here either: that is no fault of the way."""
        for index in pieces:
            start, length = self.offer.piece(index)
            sum_ = _entry(self._table, index)
            if sum_ and self._blocks.sum_of(self._fd, self._start + start, length, index) != sum_:
                self._check(stream)  # overwritten rather than damaged
                frames.announce(stream, index, frames.DAMAGED)
                raise Refusal(f"the snapshot is damaged here: piece {index} of it does not match its seal")


def _entry(table: bytes, index: int) -> bytes:
    return table[index * seal.SUM_BYTES : (index + 1) * seal.SUM_BYTES]
