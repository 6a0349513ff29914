"""The seconds of a live run as counters, which never go down: whoever asks for their rate would take that for a new
beginning, and count everything again.

What ranks do now is known when they report it, and what a fault cost when it is over; until then some seconds stand
under another name. What is sorted anew lowers nothing, so a counter may be too high by as much as was not known once.
"""


class Rising:
    """Of one who is asked again and again."""

    def __init__(self) -> None:
        self._highest: dict[str, float] = {}

    def of(self, name: str, value: float) -> float:
        found = self._highest[name] = max(value, self._highest.get(name, 0.0))
        return found
