"""The lock of a run's journal: one writing process, by `flock`. The kernel drops the lock when its holder dies.

Also answers, without disturbing the holder, whether a controller is alive: a process id alone can have been given to
another program since. Called by the writer and by the reading verbs.
"""

import errno
import fcntl
import os
import time
from pathlib import Path

from everstep.errors import JournalError, RunLockedError
from everstep.linux.regular import open_regular

_PATIENCE_S = 0.3
"""How long to retry. A reader asking `holder` owns a shared lock for microseconds; a controller that starts just then
tries again. Too short: a status command can stop a controller from starting. Too long: a real second controller is
reported late."""


def acquire(path: Path) -> int:
    """Lock `path`, write our process id into it, return the descriptor: close it to unlock. Raises
    RunLockedError."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise JournalError(f"cannot open the lock {path}: {error.strerror}") from error
    deadline = time.monotonic() + _PATIENCE_S
    while not _try(fd, fcntl.LOCK_EX):
        if time.monotonic() > deadline:
            pid = _read_pid(fd)
            os.close(fd)
            who = f"process {pid}" if pid else "another process"
            raise RunLockedError(
                f"{path.parent} is in use: {who} writes its journal. Nothing was changed. "
                "Wait until it ends, or choose another --run-dir."
            )
        time.sleep(0.01)
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        pass  # full disk: the lock holds without the note, which is only for messages
    return fd


def holder(path: Path) -> int | None:
    """Process id of the lock's holder, 0 if the holder is unknown, None if it is free."""
    try:
        fd = open_regular(path)
    except OSError:
        return None
    try:
        return None if _try(fd, fcntl.LOCK_SH) else _read_pid(fd)
    finally:
        os.close(fd)


def _try(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise JournalError(f"the file system of the run directory cannot lock files: {error.strerror}") from error
    return True


def _read_pid(fd: int) -> int:
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else 0
