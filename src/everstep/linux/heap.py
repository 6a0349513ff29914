"""How the C library keeps memory that was freed, in processes that serve others for weeks.

By default it has an area for each of many threads, and learns to keep larger and larger pieces: memory of a busy
minute, or of a stranger who connects all day, is never given back. Of a process's own code only; ranks are left as they
are.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


class _Info(ctypes.Structure):
    """The C library's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks")
    ] + [("keepcost", ctypes.c_size_t)]


def bytes_in_use() -> int:
    """Return the bytes that this process has of its C library and has not freed; if the library cannot report them, its
    private memory."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)  # glibc 2.33
    if mallinfo is not None:
        mallinfo.restype = _Info
        found = mallinfo()
        return int(found.uordblks) + int(found.hblkhd)
    _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


class Growth:
    """How much more memory is in use after something than before it, summed over all times that it was done. What other
    threads take and free meanwhile is in it, and evens out."""

    def __init__(self) -> None:
        self.num_bytes = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        before = bytes_in_use()
        try:
            yield
        finally:
            self.num_bytes += bytes_in_use() - before
