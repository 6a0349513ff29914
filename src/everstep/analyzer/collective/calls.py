"""Match of operations with the calls that entered them: joins a flight record, which knows when operations began, with
calls of the program, which are known from begin to end. Pure.

An operation belongs to the innermost call of its thread that it began in. A call that made several operations shows for
none of them how long it took.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

MAX_DEPTH = 8
"""Calls within calls: torch makes an all-gather of objects from two of tensors."""

Call = tuple[int, int, int]
"""Thread, begin, end; nanoseconds of the wall clock."""


def durations(entered: Sequence[tuple[int, int]], calls: Iterable[Call]) -> list[float]:
    """Seconds of the call for each operation (thread, when it was entered in ns); -1 where none is known."""
    by_thread: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for thread, begin, end in calls:
        if begin <= end:
            by_thread[thread].append((begin, end))
    begins: dict[int, list[int]] = {}
    for thread, listed in by_thread.items():
        listed.sort()
        begins[thread] = [begin for begin, _ in listed]
    found = [_innermost(at, by_thread[thread], begins[thread]) if thread in begins else None for thread, at in entered]
    used = Counter((thread, span) for (thread, _), span in zip(entered, found, strict=True) if span is not None)
    return [
        (span[1] - span[0]) / 1e9 if span is not None and used[thread, span] == 1 else -1.0
        for (thread, _), span in zip(entered, found, strict=True)
    ]


def _innermost(at: int, spans: Sequence[tuple[int, int]], begins: Sequence[int]) -> tuple[int, int] | None:
    last = bisect_right(begins, at)
    for place in range(last - 1, max(-1, last - 1 - MAX_DEPTH), -1):
        if spans[place][1] >= at:
            return spans[place]
    return None
