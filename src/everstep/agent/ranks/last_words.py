"""Which part of a rank's stderr belongs to its end: what it wrote in its last seconds, or since its last step.

A line from the start of the job stands among the last ones of a rank that hardly writes to stderr, and explains
nothing. Looked at by the monitor twice a second; costs one stat.
"""

import os
from collections import deque
from pathlib import Path

LAST_S = 5.0
"""What a rank wrote this shortly before its end belongs to it, whatever it did meanwhile."""
UNKNOWN_S = 60.0
"""The same for a rank whose steps are not seen."""
_MAX_SIZES = 256


class LastWords:
    """Sizes of one log over time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sizes: deque[tuple[float, int]] = deque(maxlen=_MAX_SIZES)
        self._last_step_at: float | None = None

    def look(self, now: float, last_step_at: float | None) -> None:
        """`last_step_at`: when the rank completed its last step; None: not known."""
        self._last_step_at = last_step_at
        try:
            size = os.stat(self._path).st_size  # noqa: PTH116 - twice a second for each rank
        except OSError:
            return
        if not self._sizes or self._sizes[-1][1] != size:
            self._sizes.append((now, size))

    def begin(self, ended_at: float) -> int:
        """The offset in the log where the last words begin. 0 if the log was not looked at in time: all of it may
        belong to the end then."""
        stepped = self._last_step_at
        limit = ended_at - UNKNOWN_S if stepped is None else min(ended_at - LAST_S, stepped)
        return max((size for at, size in self._sizes if at <= limit), default=0)
