"""The seconds of a live run as counters, which never go down: a rate over a drop would treat it as a restart of the
counter, and count everything again.

What ranks do now is known when they report it, and what a fault cost when it is over; until then some seconds stand
under another name. Reclassifying lowers nothing, so a counter may be too high by as much as was not known once.
"""


class Rising:
    """The counters of one scraper."""

    def __init__(self) -> None:
        self._highest: dict[str, float] = {}

    def of(self, name: str, value: float) -> float:
        found = self._highest[name] = max(value, self._highest.get(name, 0.0))
        return found
