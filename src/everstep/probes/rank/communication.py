"""When did the sequence numbers of a rank's process groups last move? As the watch thread in the rank wrote it down.

A rank whose thread does not look any more (stopped, or something holds the interpreter lock) is unknown here: nobody
saw that nothing moved. Other signals tell that one.
"""

from collections.abc import Callable

STALE_S = 2.0
"""The thread looks twice a second; a busy machine may delay it."""


class CommunicationProbe:
    def __init__(self, read: Callable[[], tuple[float | None, float | None]]) -> None:
        """`read`: when they last moved, and when somebody last looked."""
        self._read = read

    def look(self, now: float) -> float | None:
        moved_at, looked_at = self._read()
        if moved_at is None or looked_at is None or now - looked_at > STALE_S:
            return None
        return max(0.0, now - moved_at)
