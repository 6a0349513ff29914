"""Keeps the ranks' log files below a limit: in a larger file, a hole in the middle gives disk space back.

The file's beginning and its end stay, and so does every offset in it: readers continue without being notified. What was
in between reads as zeros (a hole). Files in --log-dir are the user's, and kept whole. A file system that makes no holes
keeps all of it, as before.
"""

import logging
from pathlib import Path

from everstep.agent.streams.holes import punch

LIMIT_BYTES = 256 << 20
"""Limit of one stream of one rank in one generation, on the disk."""

HEAD_BYTES = 16 << 20
_BLOCK = 1 << 20

_log = logging.getLogger(__name__)


def limit(path: Path, limit_bytes: int = LIMIT_BYTES, head_bytes: int = HEAD_BYTES) -> int:
    """Bytes that were given up now. Half of the limit stays at the end, so that this is rare. Never raises."""
    try:
        if path.is_symlink():
            return 0  # published
        found = path.stat()
        end = (found.st_size - limit_bytes // 2) // _BLOCK * _BLOCK
        if found.st_blocks * 512 <= limit_bytes or end <= head_bytes or not punch(path, head_bytes, end):
            return 0
    except OSError:
        return 0
    _log.info("%s is above its limit: bytes %d to %d were given up", path, head_bytes, end)
    return end - head_bytes
