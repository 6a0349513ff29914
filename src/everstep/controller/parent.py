"""Ties a process to the one that started it: when that one dies, however it dies, SIGTERM comes. Linux only."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> bool:
    """False when `parent` is gone already, so that the signal would never come."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    return os.getppid() == parent
