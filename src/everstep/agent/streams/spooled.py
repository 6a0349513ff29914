"""One stream of a rank: a file in memory that the rank writes to, and the log file that it goes to from there.

Writing to memory needs no room on a disk and waits for nothing. What has been copied gives its space back (a hole), so
the remainder itself shows how far the copy got: any holder of a descriptor can continue it.
"""

import contextlib
import fcntl
import logging
import os
import signal
import time
from pathlib import Path

from everstep.agent.streams import log_limit
from everstep.agent.streams.holes import after_hole, punch

LOOK_S = 0.5

MOST_BYTES = 64 << 20
"""That wait for a file that takes them, however slowly; of more only the end is kept."""

KEPT_BYTES = 8 << 20
"""The same while the file takes nothing."""

PATIENCE_S = 5.0
"""So long without a byte: it takes nothing."""

_PIECE_BYTES = 256 << 10
_LIMIT_EVERY_BYTES = 8 << 20
_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
_NO_WRITER = fcntl.F_RDLCK
"""A read lease, which the kernel grants for a file without writers."""

_log = logging.getLogger(__name__)


def reopened(fd: int, flags: int) -> int:
    """Open the same file anew. Raises OSError."""
    return os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)


class Spooled:
    """Owns `fd`, the memory opened for reading. One thread at a time copies; `bound` may be another's."""

    def __init__(self, fd: int, path: Path) -> None:
        self.fd = fd
        self.path = path
        self._at = 0  # copied up to here
        self._target = -1
        self._why = ""  # why the file takes nothing
        self._failed_size = 0
        self._num_unlimited = 0
        self._waits = (0, 0.0)  # from which byte, and since when
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # opening it while we hold a lease sends this: ignored

    def begin(self) -> None:
        """The log file is there, if there is room for it."""
        try:
            self._open()
        except OSError as error:
            self._fail(error)

    def resume(self) -> None:
        """Where another process has left off."""
        begin = after_hole(self.fd, 0)
        page = os.pread(self.fd, os.sysconf("SC_PAGE_SIZE"), begin)
        self._at = begin + len(page) - len(page.lstrip(b"\0"))

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the memory."""
        known = os.fstat(self.fd)
        return known.st_dev, known.st_ino

    @property
    def has_rest(self) -> bool:
        return os.fstat(self.fd).st_size != self._at

    def rest(self, most: int) -> bytes:
        """The end of what is not in the file."""
        size = os.fstat(self.fd).st_size
        return os.pread(self.fd, most, max(self._at, size - most)) if size > self._at else b""

    def copy(self) -> bool:
        """Copy what is there now. False: the file did not take all of it."""
        size = os.fstat(self.fd).st_size
        while self._at < size or size < self._at:
            if not self.copy_some():
                return False
            size = min(size, os.fstat(self.fd).st_size)
        return True

    def copy_some(self, *, is_line: bool = False) -> bool:
        """A piece, or a line. False: there is nothing, or the file takes nothing."""
        size = os.fstat(self.fd).st_size
        if size < self._at:
            self._at = 0  # `echo x > /dev/stdout` empties a file, and a pipe it would not have
        if size == self._at:
            return False
        try:
            target = self._open()
            self._tell_lost(target)
            data = os.pread(self.fd, _PIECE_BYTES, self._at)
            if is_line:
                data = data[: data.find(b"\n") + 1] or data
            written = os.write(target, data)
            self._at += written
            punch(f"/proc/self/fd/{self.fd}", 0, self._at)
        except OSError as error:
            self._fail(error)
            return False
        self._note_taken(written)
        return True

    def bound(self) -> None:
        """The memory that is used stays below a limit, whatever becomes of the file: the oldest is given up."""
        found, now = os.fstat(self.fd), time.monotonic()
        if found.st_blocks * 512 <= KEPT_BYTES:
            return
        begin = after_hole(self.fd, 0)
        if begin != self._waits[0]:
            self._waits = begin, now
        most = KEPT_BYTES if now - self._waits[1] > PATIENCE_S else MOST_BYTES
        if found.st_size - begin > most:
            with contextlib.suppress(OSError):
                punch(f"/proc/self/fd/{self.fd}", 0, found.st_size - most // 2)

    def has_writers(self) -> bool:
        try:
            fcntl.fcntl(self.fd, fcntl.F_SETLEASE, _NO_WRITER)
        except OSError:
            return True
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return False

    def close(self) -> None:
        os.close(self.fd)
        self._close_target()

    def _open(self) -> int:
        if self._target < 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._target = os.open(self.path, _FILE_FLAGS, 0o600)
        return self._target

    def _close_target(self) -> None:
        if self._target >= 0:
            os.close(self._target)
            self._target = -1

    def _tell_lost(self, target: int) -> None:
        begin = after_hole(self.fd, self._at)
        if begin > self._at:
            os.write(target, b"\n[everstep: %d bytes were lost here: they found no room]\n" % (begin - self._at))
            self._at = begin

    def _note_taken(self, num_bytes: int) -> None:
        if self._why:
            _log.warning("%s takes again what its rank writes", self.path)
            self._why = ""
        self._num_unlimited += num_bytes
        if self._num_unlimited >= _LIMIT_EVERY_BYTES:
            self._num_unlimited = 0
            log_limit.limit(self.path)

    def _fail(self, error: OSError) -> None:
        self._close_target()  # a handle of a file server may be what is wrong
        size = os.fstat(self.fd).st_size
        if size != self._failed_size:
            self._failed_size = size
            with contextlib.suppress(OSError):
                os.utime(self.path)  # when a rank last wrote is a sign of life, and needs no room
        if not self._why:
            self._why = str(error)
            text = "%s takes nothing of what its rank writes (%s): the last %d MiB are kept in memory"
            _log.warning(text, self.path, error, KEPT_BYTES >> 20)
