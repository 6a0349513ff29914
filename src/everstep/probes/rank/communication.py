"""Age of the last change of a rank's process-group sequence numbers, as recorded by the watch thread in the rank.

If that thread no longer looks (it is stopped, or another thread holds the GIL), the age is unknown here: no look shows
that nothing moved. Other signals cover that case.
"""

from collections.abc import Callable

STALE_S = 2.0
"""The thread looks twice a second; a busy machine may delay it."""


class CommunicationProbe:
    def __init__(self, read: Callable[[], tuple[float | None, float | None]]) -> None:
        """`read`: time of the last change, and time of the last look."""
        self._read = read

    def look(self, now: float) -> float | None:
        moved_at, looked_at = self._read()
        if moved_at is None or looked_at is None or now - looked_at > STALE_S:
            return None
        return max(0.0, now - moved_at)
