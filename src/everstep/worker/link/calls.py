"""The newest calls of collectives that are over; `worker.hooks.collective_calls` notes them."""

from collections import deque

MAX_CALLS = 1024
"""Twice what our flight record holds: some of its operations are made of several calls."""

noted: deque[tuple[int, int, int]] = deque(maxlen=MAX_CALLS)
"""Thread, begin, end; wall-clock nanoseconds, in order of their ends. Of any thread."""


def newest() -> list[tuple[int, int, int]]:
    """The calls noted now."""
    return list(noted)  # one operation under the GIL: no other thread runs Python meanwhile
