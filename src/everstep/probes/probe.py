"""Interface of all probes of a rank: a probe returns how long its signal has been silent, or that this is unknown.

None is unknown: not supported here, not permitted, no measurement yet. Unknown is never 0 and never an invented age. A
probe raises nothing and waits for nothing. The agent's monitor calls probes twice a second.
"""

from typing import Protocol


class Probe(Protocol):
    """One signal of one rank."""

    def look(self, now: float) -> float | None:
        """Seconds since the last sign of life; None: unknown."""
        ...
