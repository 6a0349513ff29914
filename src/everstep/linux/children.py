"""How a child process ended, and the one way to take all that have."""

import os
import signal as signals
import time
from collections.abc import Iterator
from dataclasses import dataclass

OWN_THREAD = 0x20000000
"""Linux's __WNOTHREAD, which Python does not name: only children of the thread that asks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a process ended: by `code` or by `signal`; neither: unknown."""

    pid: int
    at: float
    code: int | None = None
    signal: int | None = None

    def __str__(self) -> str:
        if self.signal is not None:
            return f"killed by {signals.Signals(self.signal).name}"
        return f"exit code {self.code}"


def wait_for(pid: int) -> Ended:
    """Wait for this child to end. It is a zombie, and its number its own, until this returns."""
    found = os.waitid(os.P_PID, pid, os.WEXITED)
    assert found is not None  # only WNOHANG can find nothing
    return _ended(found)


def take_ended(options: int = 0) -> Iterator[Ended]:
    """Each child that has ended so far, waited for. `options`: `OWN_THREAD`, or 0: of all threads."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | options)
        except ChildProcessError:
            return
        if found is None:
            return
        yield _ended(found)


def _ended(found: os.waitid_result) -> Ended:
    is_code = found.si_code == os.CLD_EXITED
    return Ended(
        pid=found.si_pid,
        at=time.time(),
        code=found.si_status if is_code else None,
        signal=None if is_code else found.si_status,
    )
