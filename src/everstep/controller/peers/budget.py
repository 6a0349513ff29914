"""Rate limit of one peer: a bucket of units that fills again with time. A peer above it is read more slowly.

Nothing is dropped: the peer keeps what is not acknowledged, its connection fills, and it waits. So a peer that floods
only uses up its own share of the controller. An agent makes some ten reports a second.
"""

UNITS_PER_S = 100.0
MAX_UNITS = 1_000.0
"""A link that comes back brings what happened meanwhile at once."""

UNIT_BYTES = 4096
"""A report costs one unit, and one more for each of these: decoding takes time by the byte."""

GREETING_UNITS = 20.0


class Budget:
    __slots__ = ("_at", "_units")

    def __init__(self, now: float) -> None:
        self._units = MAX_UNITS
        self._at = now

    def spend(self, units: float, now: float) -> float:
        """Seconds to wait before reading on; 0 as long as there is something left."""
        self._units = min(MAX_UNITS, self._units + (now - self._at) * UNITS_PER_S) - units
        self._at = now
        return 0.0 if self._units >= 0 else -self._units / UNITS_PER_S
