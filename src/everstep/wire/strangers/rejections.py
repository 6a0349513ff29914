"""Rejected connections and requests, counted by kind and logged once in a while, however often they happen.

None of it is in the journal: any client that can reach the port could fill the disk. Seen in `/metrics`, `/api/health`
and `everstep doctor`.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable

_LOG = logging.getLogger("everstep.controller")

QUIET_S = 60.0
"""Between two lines about the same kind. Shorter: a hostile peer writes our log, and the user's terminal."""

MAX_WHY_CHARS = 300


class Rejections:
    def __init__(self, clock: Callable[[], float] = time.monotonic, log: logging.Logger = _LOG) -> None:
        self.counts: Counter[str] = Counter()
        self._log = log
        self._clock = clock
        self._said: dict[
            str, tuple[float, int]
        ] = {}  # kind -> when it was said last, and how often it had been by then

    def note(self, kind: str, why: str) -> None:
        """`kind` is one of a closed list (docs/api.md), never something that a peer sent."""
        self.counts[kind] += 1
        now = self._clock()
        said_at, said_count = self._said.get(kind, (float("-inf"), 0))
        if now - said_at < QUIET_S:
            return
        since = self.counts[kind] - said_count - 1
        before = f" ({since} more since the last such line)" if since else ""
        self._said[kind] = now, self.counts[kind]
        # What a peer sent may hold anything, also what moves a terminal's cursor.
        self._log.warning("turned away, %s: %s%s", kind, printable(why), before)


def printable(why: str) -> str:
    return why[:MAX_WHY_CHARS].encode("unicode_escape").decode()
