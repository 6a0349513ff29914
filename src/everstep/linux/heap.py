"""How the C library keeps memory that was freed, in processes that serve others for weeks.

By itself it has an area for each of many threads, and learns to keep larger and larger pieces: what a busy minute took,
or a neighbour who knocks all day, is never given back. Of a process's own code only; ranks are left as they are.
"""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of malloc.h

_KEPT_BYTES = 128 << 10
_PIECE_BYTES = 256 << 10
"""From here on a piece of memory is given back as it is freed."""


def keep_little() -> None:
    """One area for all threads, and no more kept than a little. Nothing where the C library does not know these."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is None:
        return
    mallopt(_ARENA_MAX, 1)
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_MMAP_THRESHOLD, _PIECE_BYTES)
