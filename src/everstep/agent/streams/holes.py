"""Holes in files: bytes that give their place back, on the disk or in memory. Offsets stay as they are."""

import ctypes
import errno
import os
from pathlib import Path

_KEEP_SIZE_PUNCH_HOLE = 0x1 | 0x2
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def punch(path: str | Path, begin: int, end: int) -> bool:
    """These bytes read as zeros from now on. False where the file system makes no holes. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return bool(_libc.fallocate(fd, _KEEP_SIZE_PUNCH_HOLE, begin, end - begin) == 0)
    finally:
        os.close(fd)


def after_hole(fd: int, at: int) -> int:
    """`at`, or where the hole that it lies in ends, to a page. Moves the descriptor."""
    try:
        return os.lseek(fd, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return os.fstat(fd).st_size
