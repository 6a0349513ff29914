"""Distance of a figure from its own history, and from its peers in the same window, as text. Pure.

Robust: a median, and the median of the distances from it. So neither a few bursts nor a period (a save in every tenth
window) move the usual value. With too few values, no value is usual or unusual.
"""

import statistics
from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

MIN_VALUES = 6
MAX_VALUES = 90
"""A quarter of an hour, in windows of ten seconds."""

SPREADS = 4.0
TO_SIGMA = 1.4826
MIN_PEERS = 1
MIN_EXCESS = 0.05
"""Share of the window; it applies also if a figure never varied."""


class Usual(msgspec.Struct, frozen=True, kw_only=True):
    """The usual value among some values, and their spread."""

    median: float
    spread: float

    @property
    def limit(self) -> float:
        """A value above this is unusual."""
        return self.median + max(MIN_EXCESS, SPREADS * self.spread)


def usual_of(values: Sequence[float]) -> Usual | None:
    """The usual value; None: too few values."""
    if len(values) < MIN_VALUES:
        return None
    median = statistics.median(values)
    return Usual(median=median, spread=TO_SIGMA * statistics.median(abs(value - median) for value in values))


class History:
    """History of one signal of one rank, as shares of windows. An unusual value does not become usual before it has
    lasted long."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=MAX_VALUES)
        self.since: float | None = None  # when the first of the newest unusual windows in a row ended

    def note(self, at: float, value: float) -> Usual | None:
        """Add a value. Returns what was usual before it; None: unknown so far."""
        usual = usual_of(self._values)
        if usual is None or value <= usual.limit:
            self.since = None
        elif self.since is None:
            self.since = at
        self._values.append(value)
        return usual


class Histories:
    """Histories of all signals of one rank."""

    def __init__(self) -> None:
        self._of: dict[str, History] = {}

    def note(self, at: float, shares: Mapping[str, float], peers: Sequence[Mapping[str, float]]) -> dict[str, str]:
        """Signal -> `usually 2%, its neighbours 1%, unusual for 40 s`, as far as known. `peers`: the same window of the
        node's other ranks. A signal that is not among the shares did not occur in this window."""
        for signal in shares:
            self._of.setdefault(signal, History())
        told = {}
        for signal, history in self._of.items():
            usual = history.note(at, shares.get(signal, 0.0))
            words = [f"usually {usual.median:.0%}"] if usual is not None else []
            if len(peers) >= MIN_PEERS:
                words.append(f"its neighbours {statistics.median(each.get(signal, 0.0) for each in peers):.0%}")
            if history.since is not None and at > history.since:
                words.append(f"unusual for {at - history.since:.0f} s")
            told[signal] = ", ".join(words)
        return told
