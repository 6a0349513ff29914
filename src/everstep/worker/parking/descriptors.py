"""Numbers of descriptors of ours: high ones, so that the program's own are those that it expects."""

import os

_MOST = 4096
_ROOM = 256


def raise_fd(fd: int) -> int:
    """The same descriptor at a high number, closed on exec."""
    highest = min(os.sysconf("SC_OPEN_MAX"), _MOST)
    for number in range(highest - 1, max(highest - _ROOM, 3), -1):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(fd, number, inheritable=False)
            os.close(fd)
            return number
    os.set_inheritable(fd, False)
    return fd
