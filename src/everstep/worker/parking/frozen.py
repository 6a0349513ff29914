"""What a rank had when it left its twin. The two share that memory, and a write by either copies the page first.

A full collection writes to every object. Two or three of them come between the imports of a large program and its first
step: they would copy nearly all of it, in a quarter of a second for each rank. So the collector passes over what was
there until the first step. A collection that the program asks for, or a query for all objects, ends that at once: only
`gc.get_freeze_count` can tell.
"""

from __future__ import annotations

import time

LONGEST_S = 60.0
"""A program whose steps are not seen is collected as a whole after this."""

_OF_PYTHON = 1000
"""Python 3.12 and later may freeze a few hundred objects of their own. A call of `gc.freeze` freezes all, thousands."""

QUESTIONS = frozenset({"gc.get_objects", "gc.get_referents", "gc.get_referrers"})
"""Audit events."""


class Frozen:
    def __init__(self) -> None:
        self._is_ours = False
        self._until = 0.0  # 0: nothing is passed over, or this is a twin

    def freeze(self) -> None:
        """Just before a fork. Nothing where the program has frozen something itself."""
        import gc  # the program may find that it is loaded once it is parked, and not before

        # it counts them one by one: a tenth of a second where all are
        if self._is_ours or gc.get_freeze_count() < _OF_PYTHON:
            self._is_ours = True
            gc.freeze()

    def begin(self) -> None:
        """In the rank, and in a process that continues from the twin."""
        self._until = time.monotonic() + LONGEST_S if self._is_ours else 0.0

    def wait(self) -> None:
        """In the twin: it stays as it is."""
        self._until = 0.0

    def before_full(self) -> None:
        """A full collection is about to begin."""
        if self._until and (not _is_automatic() or time.monotonic() > self._until):
            self.release()

    def release(self) -> None:
        """From now on everything is collected."""
        if not self._until:
            return
        import gc

        self._until, self._is_ours = 0.0, False
        gc.unfreeze()


def _is_automatic() -> bool:
    """Whether a collection was due by its threshold, so that the program has not asked for it."""
    import gc

    return gc.isenabled() and gc.get_count()[0] > gc.get_threshold()[0]
