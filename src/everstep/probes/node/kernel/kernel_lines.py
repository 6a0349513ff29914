"""The kernel log, line by line, from the moment it was opened.

Reads /dev/kmsg, or the file or FIFO in EVERSTEP_KMSG: for drills, and for containers with the log elsewhere. It does
not interpret lines, and imports little: an agent opens it before it has time for more.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from everstep.probes.oom import parse_record
from everstep.probes.sense import UnsupportedError

SOURCE = "kernel log"
DEFAULT_PATH = "/dev/kmsg"
VARIABLE = "EVERSTEP_KMSG"
"""Environment variable with another path; "{node}" in it becomes the node's id, for several agents on a machine."""

MAX_BATCH_BYTES = 64 << 10
"""Bytes matched at once. A flood is read in such pieces, with pauses, so that it costs a part of one core."""
_RECORD_BYTES = 8192


class KernelLines:
    """Raw lines that appeared since it was opened. Raises UnsupportedError if there is no log to read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.num_overwritten = 0  # number of times that records were overwritten before they were read
        self._tail = b""
        try:
            mode = Path(path).stat().st_mode
            # Open a FIFO for writing too: otherwise it would end with its first writer.
            access = os.O_RDWR if stat.S_ISFIFO(mode) else os.O_RDONLY
            self.fd = os.open(path, access | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as error:
            raise UnsupportedError(f"{path}: {error.strerror}") from error
        self._is_record_device = stat.S_ISCHR(mode)
        self.is_pollable = not stat.S_ISREG(mode)
        if stat.S_ISDIR(mode):
            self.close()
            raise UnsupportedError(f"{path} is a directory")
        if not stat.S_ISFIFO(mode):
            self._skip_what_is_there()

    def read(self) -> list[bytes]:
        """Complete lines, at most MAX_BATCH_BYTES of them. Raises UnsupportedError if the log is gone."""
        lines: list[bytes] = []
        size = 0
        while self.fd >= 0 and size < MAX_BATCH_BYTES:
            chunk = self._read_some()
            if chunk is None:
                break
            size += len(chunk)
            if self._is_record_device:
                lines.append(parse_record(chunk).encode())
            else:
                *whole, self._tail = (self._tail + chunk).split(b"\n")
                self._tail = self._tail[-MAX_BATCH_BYTES:]
                lines += whole
        return [line for line in lines if line.strip()]

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _skip_what_is_there(self) -> None:
        try:
            os.lseek(self.fd, 0, os.SEEK_END)
        except OSError as error:  # a terminal: in containers /dev/kmsg may be the console
            self.close()
            raise UnsupportedError(f"{self.path} is not a log: {error.strerror}") from error

    def _read_some(self) -> bytes | None:
        try:
            if not self.is_pollable and os.fstat(self.fd).st_size < os.lseek(self.fd, 0, os.SEEK_CUR):
                os.lseek(self.fd, 0, os.SEEK_SET)  # the file was truncated and is written again
            return os.read(self.fd, _RECORD_BYTES) or None
        except BlockingIOError:
            return None
        except BrokenPipeError:
            self.num_overwritten += 1  # the next read continues after the gap
            return b""
        except OSError as error:
            self.close()
            raise UnsupportedError(f"{self.path}: {error.strerror}") from error


def path_for(node: str, environ: Mapping[str, str]) -> str:
    """Path of this node's kernel log."""
    return environ.get(VARIABLE, DEFAULT_PATH).replace("{node}", node)
