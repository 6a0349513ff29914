"""One line below the ranks' output that says how far the job is; gone before anything else is written.

It is drawn only where the terminal has been quiet for a moment and no line is begun, so that it is in the way of
neither a flood of output nor a progress bar or a question of the program's own.
"""

import os
from collections.abc import Callable

QUIET_S = 2.0
DRAW_EVERY_S = 1.0
_ERASE = b"\r\x1b[K"


def may_draw(fd: int) -> bool:
    """A terminal that can erase a line, where the user does not forbid it."""
    plain = os.environ.get("TERM", "dumb") == "dumb" or os.environ.get("EVERSTEP_LIVE_LINE") == "off"
    return not plain and os.isatty(fd)


class LiveLine:
    """`text()` is asked for when it is to be drawn. The caller writes what `draw` and `erase` return."""

    def __init__(self, text: Callable[[], str], width: Callable[[], int]) -> None:
        self._text = text
        self._width = width
        self._drawn = ""
        self._drawn_at = float("-inf")
        self._wrote_at = float("-inf")

    def erase(self, now: float) -> bytes:
        """Before anything else is written."""
        self._wrote_at = now
        if not self._drawn:
            return b""
        self._drawn = ""
        return _ERASE

    def draw(self, now: float, *, is_at_line_begin: bool) -> bytes:
        """Nothing when it is not its turn, or says the same."""
        if not is_at_line_begin or now - self._wrote_at < QUIET_S or now - self._drawn_at < DRAW_EVERY_S:
            return b""
        self._drawn_at = now
        text = self._text()[: max(0, self._width() - 1)]
        if text == self._drawn:
            return b""
        self._drawn = text
        return _ERASE + text.encode(errors="replace")
