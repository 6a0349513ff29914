"""Changes of files, in the order in which they were written to, by inotify. Without it the files are only polled.

With a look every tenth of a second only, what two ranks wrote one after the other would be shown in the order of their
numbers.
"""

import ctypes
import os
import select
import struct
import time
from pathlib import Path

_MODIFIED, _ENTRY_CAME = 0x2, 0x100 | 0x80  # IN_MODIFY, IN_CREATE | IN_MOVED_TO
_GONE = 0x8000  # IN_IGNORED: the file is no more
_EVENT = struct.Struct("iIII")
_BUSY_CHANGES, _BUSY_S = 200, 0.02
"""More changes than these in a second are taken together: looking costs the ranks' CPUs."""


class Changes:
    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)  # -1: none is to be had
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._keys: dict[int, object] = {}
        self._num_looks = 0
        self._counted_from = 0.0

    def add(self, path: Path, key: object) -> None:
        """Watch this file from now on. If that fails it is still looked at now and then."""
        self._watch(path, _MODIFIED, key)

    def add_folder(self, path: Path, key: object) -> bool:
        """Watch for new entries of this folder; False if there is no such folder yet."""
        return self._watch(path, _ENTRY_CAME, key)

    def _watch(self, path: Path, what: int, key: object) -> bool:
        number = self._libc.inotify_add_watch(self._fd, os.fsencode(path), what) if self._fd >= 0 else -1
        if number >= 0:
            self._keys[number] = key
        return number >= 0

    def clear(self) -> None:
        for number in self._keys:
            self._libc.inotify_rm_watch(self._fd, number)
        self._keys.clear()

    def wake(self) -> None:
        """End a `wait` that is under way; from any thread."""
        os.eventfd_write(self._wake, 1)

    def wait(self, timeout_s: float) -> list[object]:
        """Keys of the files that changed, the first one first, one as often as others came between; none when the time
        is over."""
        self._rest_if_busy()
        ready, _, _ = select.select([self._wake, *([self._fd] if self._fd >= 0 else [])], [], [], timeout_s)
        if self._wake in ready:
            os.eventfd_read(self._wake)
        return self.take() if self._fd in ready else []

    def _rest_if_busy(self) -> None:
        now = time.monotonic()
        if now - self._counted_from > 1.0:
            self._num_looks, self._counted_from = 0, now
        self._num_looks += 1
        if self._num_looks > _BUSY_CHANGES:
            time.sleep(_BUSY_S)

    def take(self) -> list[object]:
        """Return the keys that `wait` would return, but without waiting: only what is there now."""
        try:
            data = os.read(self._fd, 64 << 10)
        except OSError:
            return []
        found: list[object] = []
        while len(data) >= _EVENT.size:
            number, mask, _, length = _EVENT.unpack_from(data)
            data = data[_EVENT.size + length :]
            key = self._keys.pop(number, None) if mask & _GONE else self._keys.get(number)
            if key is not None and (not found or found[-1] != key):
                found.append(key)
        return found
