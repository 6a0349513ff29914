"""Sums over the pieces of a snapshot: is this memory still what was written?

The table of sums lies right behind the snapshot's bytes in the same buffer, the checksum of the table in the buffer's
cell. A sum is seeded with the number of its piece, so pieces that changed places are seen as well. Pure: it is given
memory and gives sums. Called by `checkpoint.arena`; the table is made by the worker's copying thread, soon after a
snapshot is complete, because a sum must never stand in an optimizer's way.
"""

import itertools
import struct
import zlib
from collections.abc import Iterator

PIECE_BYTES = 4 << 20
"""Hashing releases the GIL once per piece, and getting it back may take 5 ms from a program that computes in Python:
smaller pieces would take long there, larger ones locate damage less precisely."""

SUM_BYTES = 8


def table_bytes(length: int) -> int:
    """Bytes of the table for a snapshot of `length` bytes."""
    return SUM_BYTES * -(-length // PIECE_BYTES)


def sums(memory: memoryview, first: int = 0) -> Iterator[bytes]:
    """The sum of each piece from `first` on, one after the other; the caller may stop in between."""
    for piece in range(first, _num_pieces(memory)):
        yield _sum_of(memory, piece)


def table_sum(table: bytes | bytearray) -> int:
    return zlib.crc32(table)


def check(memory: memoryview, table: bytes, crc: int, num_threads: int = 1) -> str:
    """Empty, or what does not match. No extra thread is left when it returns."""
    if len(table) != table_bytes(len(memory)) or table_sum(table) != crc:
        return "its table of sums is damaged"

    def is_damaged(piece: int) -> bool:
        return _sum_of(memory, piece) != table[piece * SUM_BYTES : (piece + 1) * SUM_BYTES]

    pieces = range(_num_pieces(memory))
    if num_threads > 1 and len(pieces) > 1:
        from concurrent.futures import ThreadPoolExecutor  # only a restore pays for the import

        with ThreadPoolExecutor(num_threads, "everstep-sums") as pool:
            found = list(itertools.compress(pieces, pool.map(is_damaged, pieces)))
    else:
        found = list(itertools.islice(filter(is_damaged, pieces), 1))
    if not found:
        return ""
    start = found[0] * PIECE_BYTES
    return f"bytes {start} to {min(start + PIECE_BYTES, len(memory)) - 1} are not those that were written"


def _num_pieces(memory: memoryview) -> int:
    return -(-len(memory) // PIECE_BYTES)


def _sum_of(memory: memoryview, piece: int) -> bytes:
    import xxhash  # not needed by those who only look at headers

    start = piece * PIECE_BYTES
    return struct.pack("<Q", xxhash.xxh3_64_intdigest(memory[start : start + PIECE_BYTES], seed=piece))
