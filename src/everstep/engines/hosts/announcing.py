"""Lines on the terminal about hosts that come and go, which one can do without end under new sessions."""

import time
from collections.abc import Callable

LINES_PER_HOST = 20
"""Lines for each host of the run, before there is one a minute."""


class Announcer:
    def __init__(self, say: Callable[[str], None], num_hosts: int) -> None:
        self._say, self._most = say, float(LINES_PER_HOST * num_hosts)
        self._left, self._said_at = self._most, time.monotonic()

    def say(self, line: str) -> None:
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._said_at) / 60.0)
        self._said_at = now
        if self._left >= 1.0:
            self._left -= 1.0
            self._say(line)
