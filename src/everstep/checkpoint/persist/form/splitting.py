"""A tensor's bytes in pieces, so that what changed is small and big tensors need no big buffers.

Answers: where are the pieces of a tensor in memory, and which block of the tensor is each. Pure arithmetic on shapes;
called by `sources`. A piece is contiguous in memory and a block (offsets, sizes) of the tensor, which is what
torch.distributed.checkpoint knows as a chunk.
"""

import math
from collections.abc import Iterator, Sequence

PIECE_BYTES = 32 << 20
"""Smaller: more files and requests, and finer sharing of what did not change. Larger: more memory per piece."""

Block = tuple[int, int, tuple[int, ...], tuple[int, ...]]
"""(first byte, number of bytes, offsets, sizes)."""


def split(sizes: Sequence[int], strides: Sequence[int], item_bytes: int, limit: int = PIECE_BYTES) -> Iterator[Block]:
    """Blocks of a dense tensor (its elements fill their memory, in whatever order of dimensions), in memory order."""
    num_bytes = math.prod(sizes) * item_bytes
    if num_bytes <= limit:
        yield 0, num_bytes, (0,) * len(sizes), tuple(sizes)
        return
    order = sorted((d for d in range(len(sizes)) if sizes[d] > 1), key=lambda d: -strides[d])
    inner_bytes = num_bytes
    outer: list[int] = []
    for dim in order:
        inner_bytes //= sizes[dim]
        if inner_bytes <= limit:
            yield from _ranges(sizes, outer, dim, inner_bytes, limit)
            return
        outer.append(dim)
    raise ValueError(f"elements of {item_bytes} bytes do not fit into pieces of {limit}")


def _ranges(sizes: Sequence[int], outer: list[int], dim: int, row_bytes: int, limit: int) -> Iterator[Block]:
    """Every index of the outer dimensions by itself, and runs along `dim`."""
    rows = max(1, limit // row_bytes)
    at = 0
    for index in range(math.prod(sizes[d] for d in outer)):
        offsets, block = [0] * len(sizes), list(sizes)
        rest = index
        for d in reversed(outer):
            rest, offsets[d] = divmod(rest, sizes[d])
            block[d] = 1
        for first in range(0, sizes[dim], rows):
            offsets[dim], block[dim] = first, min(rows, sizes[dim] - first)
            yield at, block[dim] * row_bytes, tuple(offsets), tuple(block)
            at += block[dim] * row_bytes
