"""Makes the kernel log be read at once: a rank has died, and the kernel may just have said why.

A plain file is otherwise looked at every quarter of a second, and a burst of lines is waited for. What is read within
a few milliseconds is known before the ranks have ended, and the first verdict is the right one. Rung by `agent.node`,
heard by `agent.senses.ears`; never blocks, and says nothing to a node that does not listen.
"""

import contextlib
import os
import time


class Hurry:
    """A doorbell between threads. Lives as long as the agent."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._rung_at = float("-inf")

    def ring(self) -> None:
        self._rung_at = time.monotonic()
        with contextlib.suppress(OSError):
            os.eventfd_write(self.fd, 1)

    def take(self) -> bool:
        """Whether it was rung; the next ring is a new one."""
        try:
            os.eventfd_read(self.fd)
        except OSError:
            return False
        return True

    def was_rung_within(self, seconds: float) -> bool:
        return time.monotonic() - self._rung_at <= seconds
