"""Says on the terminal that the run directory's disk is full: the ranks' output stops there, and the journal cannot."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from everstep.report.parts.units import clock

LOOK_S = 1.0
FULL_BYTES = 64 << 10
"""Less than the log files of some ranks take in a second."""

ROOM_BYTES = 1 << 20
"""So much is room again; between the two, what was said stays."""


class Room:
    """Looks at most once in `LOOK_S`. `now`: seconds, of any beginning."""

    def __init__(self, path: Path, now: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._now = now
        self._looked_at = float("-inf")
        self._is_full = False

    def lines(self) -> list[str]:
        """Return lines on what has changed since the last call."""
        if self._now() - self._looked_at < LOOK_S:
            return []
        self._looked_at = self._now()
        try:
            found = os.statvfs(self._path)
        except OSError:
            return []  # nothing is known
        free = found.f_bavail * found.f_frsize
        if found.f_blocks == 0 or (free >= FULL_BYTES if not self._is_full else free < ROOM_BYTES):
            return []
        self._is_full = not self._is_full
        at = clock(time.time())[:8]
        if not self._is_full:
            return [f"{at} the disk of {self._path} has room again"]
        kept = "What ranks print is kept in memory, the last 8 MiB of each stream, and shown then."
        lasts = f"Training continues; Everstep decides nothing until there is room. {kept}"
        return [f"{at} the disk of {self._path} is full. {lasts}"]
