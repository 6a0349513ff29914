"""Age of a rank's last log line, from the modification times of its log files; nothing is read."""

import os
from collections.abc import Sequence
from pathlib import Path


class LogProbe:
    """Probe of a rank's logs. If the rank never wrote anything, the age is unknown."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._last_at: float | None = None
        self.gap_s: float | None = None
        """Longest silence between two outputs so far."""

    def look(self, now: float) -> float | None:
        times = [at for path in self._paths if (at := _written_at(path)) is not None]
        if not times:
            return None
        newest = max(times)
        if self._last_at is not None and newest > self._last_at:
            self.gap_s = max(self.gap_s or 0.0, newest - self._last_at)
        self._last_at = newest
        return max(0.0, now - newest)


def _written_at(path: Path) -> float | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - many times a second
    except OSError:
        return None
    return status.st_mtime if status.st_size else None
