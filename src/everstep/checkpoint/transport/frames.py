"""Frames between the two sides of a transfer, once both are authenticated.

    push     client: Push(offer)                          fetch    client: Fetch(rank, step)
             server: Known + table, or Refused                     server: Offering(offer), or Refused
                                                                   client: Known + table, or Refused
    drop     client: Drop(rank, generation)
             server: Stored: nothing is kept for that rank any more, unless a later generation offered it
    then, the sender of the snapshot: pieces, each with its place, kind and sum, the last one END (or why there is none)
    then, its receiver: Stored, Again(pieces that are missing) and from there once more, or Refused

Pieces and sums are those of the seal (`checkpoint.seal`): what a rank sealed is sent without being read once more, and
is right on the other side if it is what the rank wrote. A table has the sums of what the receiver has at the place of
each piece, zeros for nothing. So an interrupted transfer resumes where it was, and what did not change since the last
snapshot is not sent. Messages are a length and JSON, checked field by field; a length above the limit ends the
connection before a byte is allocated.
"""

import struct
from collections.abc import Iterable
from typing import TypeAlias, TypeVar, overload

import msgspec

from everstep.checkpoint import seal
from everstep.checkpoint.transport.outcome import Refusal
from everstep.checkpoint.transport.stream import Stream, StreamError

PIECE_BYTES = seal.PIECE_BYTES
MOST_SNAPSHOT_BYTES = 1 << 40
MOST_MESSAGE_BYTES = 64 << 10
MOST_AGAIN = 4096  # pieces that are asked for once more in one message
NOTHING = bytes(seal.SUM_BYTES)
NUM_OFFERED = 8
"""Sums per piece in a table: what arrived before, older copies of the rank, other ranks of which this may be a
replica."""

ENTRY_BYTES = NUM_OFFERED * seal.SUM_BYTES

DATA, SAME, END, TORN, DAMAGED = range(5)
_PIECE = struct.Struct(f"<IB{seal.SUM_BYTES}s")
_LENGTH = struct.Struct("<I")


class Offer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One complete snapshot of one rank."""

    rank: int
    world_size: int
    capacity_bytes: int  # of a buffer in the arena where it lies
    step: int
    generation: int
    length: int
    skeleton_bytes: int
    skeleton_crc: int

    @property
    def num_pieces(self) -> int:
        return -(-self.length // PIECE_BYTES)

    def piece(self, index: int) -> tuple[int, int]:
        """(where it begins in the buffer, its length)."""
        start = index * PIECE_BYTES
        return start, min(PIECE_BYTES, self.length - start)

    def impossible(self) -> str:
        """Why such a snapshot cannot exist; "" if it can."""
        if not 0 <= self.rank < self.world_size < 1 << 31:
            return f"rank {self.rank} of {self.world_size}"
        if not 0 <= self.step < 1 << 63 or not 0 < self.skeleton_bytes <= self.length:
            return f"step {self.step} with {self.length} bytes"
        if not self.length <= self.capacity_bytes <= MOST_SNAPSHOT_BYTES:
            return f"{self.length} bytes in a buffer of {self.capacity_bytes}"
        if not 0 <= self.skeleton_crc < 1 << 64 or not -(1 << 63) <= self.generation < 1 << 63:
            return "an invalid checksum or generation"
        return ""


class _Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="is", tag=True):
    pass


class Push(_Message, frozen=True, kw_only=True):
    offer: Offer


class Fetch(_Message, frozen=True, kw_only=True):
    rank: int
    step: int


class Drop(_Message, frozen=True, kw_only=True):
    """In this generation the rank is copied elsewhere, and the copy there is complete."""

    rank: int
    generation: int


class Offering(_Message, frozen=True, kw_only=True):
    offer: Offer


class Known(_Message, frozen=True, kw_only=True):
    """The table follows, as long as the offer's number of pieces says. `is_complete`: it is here already, send
    nothing."""

    is_complete: bool = False


class Refused(_Message, frozen=True, kw_only=True):
    why: str


class Stored(_Message, frozen=True, kw_only=True):
    pass


class Again(_Message, frozen=True, kw_only=True):
    pieces: tuple[int, ...]


Message: TypeAlias = Push | Fetch | Drop | Offering | Known | Refused | Stored | Again
M = TypeVar("M")
N = TypeVar("N")
L = TypeVar("L")

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def say(stream: Stream, message: Message, rest: bytes = b"") -> None:
    data = _encoder.encode(message)
    stream.send(_LENGTH.pack(len(data)) + data + rest)


@overload
def hear(stream: Stream, kind: type[M]) -> M: ...
@overload
def hear(stream: Stream, kind: type[M], other: type[N]) -> M | N: ...
@overload
def hear(stream: Stream, kind: type[M], other: type[N], third: type[L]) -> M | N | L: ...
def hear(stream: Stream, kind: type[M], other: type[N] | None = None, third: type[L] | None = None) -> M | N | L:
    """The next message, which must be one of these. Raises Refusal if the other side refused, StreamError if it is
    anything else."""
    (length,) = _LENGTH.unpack(stream.receive(_LENGTH.size))
    if length > MOST_MESSAGE_BYTES:
        raise StreamError(f"sent a message of {length} bytes; at most {MOST_MESSAGE_BYTES} are read")
    try:
        message = _decoder.decode(stream.receive(length))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StreamError(f"sent something that is not a message: {error}") from error
    if isinstance(message, Refused):
        raise Refusal(message.why)
    if isinstance(message, kind) or (other is not None and isinstance(message, other)):
        return message
    if third is not None and isinstance(message, third):
        return message
    raise StreamError(f"sent {type(message).__name__} where {kind.__name__} was due")


def entry(sums: Iterable[bytes]) -> bytes:
    """One piece's part of a table; what is beyond its room is not offered."""
    return b"".join([*dict.fromkeys(sums)][:NUM_OFFERED]).ljust(ENTRY_BYTES, b"\0")


def is_offered(table: bytes, index: int, sum_: bytes) -> bool:
    at = index * ENTRY_BYTES
    places = range(at, min(at + ENTRY_BYTES, len(table)), seal.SUM_BYTES)
    return sum_ != NOTHING and any(table[place : place + seal.SUM_BYTES] == sum_ for place in places)


def announce(stream: Stream, index: int, kind: int, sum_: bytes = NOTHING) -> None:
    stream.send(_PIECE.pack(index, kind, sum_), more=kind in (DATA, SAME))


def announced(stream: Stream) -> tuple[int, int, bytes]:
    """(index, kind, sum) of the next piece."""
    index, kind, sum_ = _PIECE.unpack(stream.receive(_PIECE.size))
    return index, kind, sum_
