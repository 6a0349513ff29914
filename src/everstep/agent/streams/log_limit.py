"""Keeps the ranks' log files below a limit: of one that is larger, the middle gives its place on the disk back.

The file's beginning and its end stay, and so does every offset in it: the rank goes on appending, readers go on
reading, and nobody has to be told. What was in between reads as zeros (a hole). Files in --log-dir are the user's, and
kept whole. A file system that makes no holes keeps all of it, as before.
"""

import ctypes
import logging
import os
from pathlib import Path

LIMIT_BYTES = 256 << 20
"""Of one stream of one rank in one generation, on the disk."""

HEAD_BYTES = 16 << 20
_BLOCK = 1 << 20
_KEEP_SIZE_PUNCH_HOLE = 0x1 | 0x2
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)

_log = logging.getLogger(__name__)


def limit(path: Path, limit_bytes: int = LIMIT_BYTES, head_bytes: int = HEAD_BYTES) -> int:
    """Bytes that were given up now. Half of the limit stays at the end, so that this is rare. Never raises."""
    try:
        if path.is_symlink():
            return 0  # published, or the rank's other stream
        found = path.stat()
        if found.st_blocks * 512 <= limit_bytes:
            return 0
        end = (found.st_size - limit_bytes // 2) // _BLOCK * _BLOCK
        if end <= head_bytes:
            return 0
        return _punch(path, head_bytes, end - head_bytes)
    except OSError:
        return 0


def _punch(path: Path, begin: int, length: int) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if _libc.fallocate(fd, _KEEP_SIZE_PUNCH_HOLE, begin, length) != 0:
            return 0
    finally:
        os.close(fd)
    _log.info("%s is above its limit: bytes %d to %d were given up", path, begin, begin + length)
    return length
