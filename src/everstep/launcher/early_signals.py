"""Signals that come before the supervisor handles them: kept until it asks, so that a run that has begun gets an end.

From the first file of a run on. Without this SIGTERM would end the launcher where it stands, with a token on disk and
a journal without an end, and Ctrl-C would look like a fault of ours. The second signal ends the process as it would
without a handler: what is waited for may never come.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType


class EarlySignals:
    def __init__(self) -> None:
        self._came: list[int] = []

    @contextlib.contextmanager
    def kept(self, numbers: tuple[int, ...]) -> Iterator[None]:
        """Until the end of the `with`, or until others are handled in their place. Only the main thread may call it."""
        before = {number: signal.signal(number, self._note) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                if signal.getsignal(number) == self._note:
                    signal.signal(number, handler)

    def take(self) -> tuple[int, ...]:
        """Those that came until now, once."""
        came, self._came = tuple(self._came), []
        return came

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self._came:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._came.append(number)
