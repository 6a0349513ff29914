"""Sums over the pieces of a snapshot: is this memory still what was written?

The table of sums lies right behind the snapshot's bytes in the same buffer, the checksum of the table in the buffer's
cell. A sum is seeded with the number of its piece, so pieces that changed places are seen as well. Pure: it is given
memory and gives sums. Called by `checkpoint.arena`; the table is made by the worker's copying thread, soon after a
snapshot is complete, because a sum must never stand in an optimizer's way.
"""

import struct
import zlib
from collections.abc import Iterator

PIECE_BYTES = 4 << 20
"""Hashing gives up the interpreter lock once per piece, and getting it back may take 5 ms from a program that computes
in Python: smaller pieces would take long there, larger ones say less about where the damage is."""

SUM_BYTES = 8


def table_bytes(length: int) -> int:
    """Bytes of the table for a snapshot of `length` bytes."""
    return SUM_BYTES * -(-length // PIECE_BYTES)


def sums(memory: memoryview, first: int = 0) -> Iterator[bytes]:
    """The sum of each piece from `first` on, one after the other; the caller may stop in between."""
    import xxhash  # not needed by those who only look at headers

    for piece, start in enumerate(range(first * PIECE_BYTES, len(memory), PIECE_BYTES), first):
        number = xxhash.xxh3_64_intdigest(memory[start : start + PIECE_BYTES], seed=piece)
        yield struct.pack("<Q", number)


def table_sum(table: bytes | bytearray) -> int:
    return zlib.crc32(table)


def check(memory: memoryview, table: bytes, crc: int) -> str:
    """Empty, or what does not match."""
    if len(table) != table_bytes(len(memory)) or table_sum(table) != crc:
        return "its table of sums is damaged"
    for piece, found in enumerate(sums(memory)):
        if found != table[piece * SUM_BYTES : (piece + 1) * SUM_BYTES]:
            start = piece * PIECE_BYTES
            return f"bytes {start} to {min(start + PIECE_BYTES, len(memory)) - 1} are not those that were written"
    return ""
