"""What a rank had when it left its twin. The two share that memory, and whoever writes to a part of it copies it first.

A full collection writes to every object. Two or three of them come between the imports of a large program and its
first step: they would copy nearly all of it, in a quarter of a second for each rank. So the collector passes over what
was there until the first step. A collection that the program asks for, or a question for all objects, ends that at
once: only `gc.get_freeze_count` can tell.
"""

from __future__ import annotations

import time

LONGEST_S = 60.0
"""A program whose steps are not seen is collected as a whole after this."""

QUESTIONS = "gc."
"""Audit events of `gc.get_objects`, `gc.get_referrers` and `gc.get_referents` begin so."""


class Frozen:
    def __init__(self) -> None:
        self._num_kept = 0
        self._until = 0.0  # 0: nothing is passed over, or this is a twin
        self._is_programs = False

    def freeze(self) -> None:
        """Just before a fork. Nothing where the program has frozen something itself."""
        import gc  # the program may find that it is loaded once it is parked, and not before

        self._is_programs = self._is_programs or gc.get_freeze_count() > self._num_kept
        if not self._is_programs:
            gc.freeze()
            self._num_kept = gc.get_freeze_count()

    def begin(self) -> None:
        """In the rank, and in a process that goes on from the twin."""
        self._until = time.monotonic() + LONGEST_S if self._num_kept else 0.0

    def wait(self) -> None:
        """In the twin: it stays as it is."""
        self._until = 0.0

    def before_full(self) -> None:
        """A full collection is about to begin."""
        if self._until and (not _is_automatic() or time.monotonic() > self._until):
            self.release()

    def release(self) -> None:
        """From now on everything is collected, unless the program has frozen something meanwhile."""
        if not self._until:
            return
        import gc

        self._until, kept, self._num_kept = 0.0, self._num_kept, 0
        if gc.get_freeze_count() <= kept:
            gc.unfreeze()


def _is_automatic() -> bool:
    """So many new objects that the next one would begin a collection: nobody has asked for it."""
    import gc

    return gc.isenabled() and gc.get_count()[0] > gc.get_threshold()[0]
