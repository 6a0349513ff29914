"""Device memory, written and read back: each word holds its own number, then its complement.

A word that another address answers for, a bit that stays 0 or 1, and a bit that flips on the way are all wrong words.
Runs in the forked process of a check. Neither ECC nor a driver's counters are asked: this is what a kernel reads.
"""

from collections.abc import Callable
from typing import Any

_PIECE_WORDS = 1 << 26
_WORD_BYTES = 8
_CPU_BYTES = 64 << 20


def tested(device: str, share: float) -> dict[str, Any]:
    """Test this share of the memory that is free. Return its bytes, and how many words were wrong."""
    import torch

    free = torch.cuda.mem_get_info(device)[0] if device.startswith("cuda") else _CPU_BYTES
    pieces = [torch.empty(size, dtype=torch.int64, device=device) for size in _sizes(int(free * share) // _WORD_BYTES)]
    return {"bytes": sum(piece.nbytes for piece in pieces), "wrong": wrong_words(pieces)}


def wrong_words(pieces: list[Any], between: Callable[[], object] = lambda: None) -> int:
    """`pieces`: tensors of 64-bit integers, which are overwritten. `between` is called after each time that all of it
    was written."""
    import torch

    wrong = 0
    for flip in (0, -1):
        begin = 0
        for piece in pieces:
            torch.arange(begin, begin + len(piece), out=piece)
            piece.bitwise_xor_(flip)
            begin += len(piece)
        between()
        begin = 0
        for piece in pieces:
            expected = torch.arange(begin, begin + len(piece), dtype=torch.int64, device=piece.device)
            wrong += int((piece != expected.bitwise_xor_(flip)).sum())
            begin += len(piece)
    return wrong


def _sizes(words: int) -> list[int]:
    """In pieces: what they are compared with needs memory as well."""
    return [min(_PIECE_WORDS, words - at) for at in range(0, words, _PIECE_WORDS)]
