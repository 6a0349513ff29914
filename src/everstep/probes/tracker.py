"""multiprocessing's resource tracker, which unlinks the named semaphores and shared memory of a program that died.

It is a process of the program and ends by itself, in milliseconds, once all processes that could use those names are
gone. A cleanup after a program spares it for a moment: killed with the rest, it would leave the names for ever.
"""

import os
from collections.abc import Collection

LIMIT_S = 1.0
"""A tracker that lives longer waits for a process that does not end."""

_NAMES = (b"multiprocessing.resource_tracker", b"multiprocessing.semaphore_tracker")


def is_tracker(pid: int) -> bool:
    try:
        fd = os.open(f"/proc/{pid}/cmdline", os.O_RDONLY | os.O_CLOEXEC)
        try:
            command = os.read(fd, 4096)
        finally:
            os.close(fd)
    except OSError:
        return False
    return any(name in command for name in _NAMES)


def members_of(session: int, spared: Collection[int] = ()) -> list[int]:
    """Processes of a session, from a scan of all processes."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit() and int(name) not in spared:
            try:
                if os.getsid(int(name)) == session:
                    found.append(int(name))
            except OSError:
                continue
    return found
