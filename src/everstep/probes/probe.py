"""What every probe of a rank has in common: it says how long its signal has been silent, or that it cannot tell.

None is unknown: not supported here, not permitted, no measurement yet. It is never 0 and never an age that was made up.
A probe raises nothing and waits for nothing. Probes are called by the agent's monitor, twice a second.
"""

from typing import Protocol


class Probe(Protocol):
    """One signal of one rank."""

    def look(self, now: float) -> float | None:
        """Seconds since the last sign of life; None: not known."""
        ...
