"""The lines of one block that may match a signature, one after the other: by the net of words where it helps.

Pure; used by `engine` for each block that `matcher` reads.
"""

from collections.abc import Iterable

from everstep.knowledge.screening.net import Net, Span
from everstep.knowledge.screening.screen import MAX_LINE_BYTES, Screen


class Sieve:
    """The net of all patterns, and the automaton of those that go through it."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self.net = Net(dict.fromkeys(patterns))
        self.rest = Screen(pattern.encode() for pattern in self.net.rest) if self.net.rest else None


class Look:
    """A look at one block. Ask with positions that grow."""

    __slots__ = ("_at", "_data", "_is_sieved", "_other", "_rest", "_screen", "_spans")

    def __init__(self, data: bytes, screen: Screen, sieve: Sieve | None) -> None:
        self._data, self._screen = data, screen
        self._is_sieved = sieve is not None and sieve.net.is_usable
        self._rest = sieve.rest if sieve is not None else None
        self._spans: list[tuple[int, int, bool]] = []  # and whether it is a piece that was not looked through
        self._at = 0  # the first of them that was not passed yet
        self._other: Span | None = (-1, 0)  # the next line that the net does not find; None: there is none
        if sieve is not None and self._is_sieved:
            lines, pieces = sieve.net.lines(data)
            self._spans = sorted([(*line, False) for line in lines] + [(*piece, True) for piece in pieces])

    def next_line(self, position: int) -> Span | None:
        """Begin and end of the first line from `position` on that may match; of a very long line, a window."""
        if not self._is_sieved:
            return self._screen.next_line(self._data, position)
        found = [line for line in (self._next_caught(position), self._next_other(position)) if line is not None]
        return min(found, default=None)

    def _next_other(self, position: int) -> Span | None:
        if self._rest is None:
            return None
        if self._other is not None and self._other[0] < position:
            self._other = self._rest.next_line(self._data, position)
        return self._other

    def _next_caught(self, position: int) -> Span | None:
        while self._at < len(self._spans):
            begin, end, is_piece = self._spans[self._at]
            begin = max(begin, position)
            if begin < end and not is_piece and end - begin <= MAX_LINE_BYTES:
                return begin, end
            found = self._screen.next_line(self._data, begin, end) if begin < end else None
            if found is not None:
                return found
            self._at += 1
        return None
