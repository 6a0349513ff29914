"""All ranks end after the same step: each stops at the end of it, and begins no other one.

The agent says after which, while the step is still to come; its snapshot is taken whatever the pace is. A rank that
waits here is ended by its agent's signal, or let go by it; without either it continues by itself, because a stale
request must not stop a training. Checked by the watch thread, kept by the training thread.
"""

import threading
import time

_LOOK_S = 0.02
"""Signals are handled between two looks."""


class Hold:
    """`is_due(step)` and `wait(step)` are the training thread's."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._step: int | None = None
        self._until = 0.0
        self._newest = -1

    def ask(self, step: int, limit_s: float) -> str:
        """Empty, or why it is too late."""
        with self._changing:
            if self._newest >= step:
                return f"step {self._newest} is complete already"
            self._step, self._until = step, time.monotonic() + limit_s
            return ""

    def let_go(self) -> None:
        with self._changing:
            self._step = None

    def is_due(self, step: int) -> bool:
        """Whether no step follows this one, which is complete: its snapshot is wanted."""
        with self._changing:
            self._newest = step
            return self._step is not None and step >= self._step

    def wait(self, step: int) -> None:
        """For as long as this step is to be the last."""
        while self.is_due(step) and time.monotonic() < self._until:
            time.sleep(_LOOK_S)
