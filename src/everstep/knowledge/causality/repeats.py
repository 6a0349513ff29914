"""Warnings that a log repeats thousands of times and that mean nothing: taken out before the text is screened.

A warning that every rank prints at every step stops the screen each time, and then reading is ten times slower than
the text deserves. What is taken out is found by the very words that make such a line harmless, so that no line goes
that could have meant something. Pure and bounded; one per stream, used by `matcher`.
"""

import re

AFTER = 8
"""A wording counts as repeated when it was seen so often."""
_MAX_WORDINGS = 8
_MAX_COUNTED = 256
_MIN_BYTES = 20
_REACH = 60
_DIGITS = re.compile(rb"\d")


def wording(message: bytes, begin: int, end: int) -> bytes:
    """The words at [begin, end) with what stands round them up to the next digit: the part that repeats."""
    left = message[max(0, begin - _REACH) : begin]
    right = message[end : end + _REACH]
    digits = list(_DIGITS.finditer(left))
    left = left[digits[-1].end() :] if digits else left
    stop = _DIGITS.search(right)
    right = right[: stop.start()] if stop else right
    found = left + message[begin:end] + right
    return found if len(found) >= _MIN_BYTES else b""


class Repeats:
    """Counts harmless wordings, and takes out the lines of those that repeat."""

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}
        self._wordings: list[bytes] = []

    @property
    def is_full(self) -> bool:
        return len(self._wordings) >= _MAX_WORDINGS

    def note(self, words: bytes) -> None:
        if words not in self._counts and len(self._counts) >= _MAX_COUNTED:
            return
        self._counts[words] = self._counts.get(words, 0) + 1
        if self._counts[words] == AFTER and not self.is_full:
            self._wordings.append(words)

    def without(self, data: bytes) -> bytes:
        """The text with those lines empty: the number of lines stays."""
        spans: list[tuple[int, int]] = []
        for words in self._wordings:
            at = data.find(words)
            while at >= 0:
                begin, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
                end = len(data) if end < 0 else end
                if data.find(b"\r", begin, end) < 0:  # several lines in one: leave them
                    spans.append((begin, end))
                at = data.find(words, end)
        if not spans:
            return data
        spans.sort()
        kept, position = [], 0
        for begin, end in spans:
            if begin >= position:
                kept.append(data[position:begin])
                position = end
        return b"".join((*kept, data[position:]))
