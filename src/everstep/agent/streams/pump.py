"""Drains the ranks' pseudo-terminals into their memory (`spool`): a thread of the agent, apart from its event loop.

A pseudo-terminal holds some KiB, and a write to a full one blocks. So nothing that the agent does may come in between:
the thread reads, appends, and does nothing else; no disk is part of that. If the whole agent stands still, its node is
silent, and is replaced.

The size of the real terminal is polled twice a second: its signal does not reach an agent.
"""

import contextlib
import fcntl
import logging
import os
import select
import struct
import termios
import threading
import time

import msgspec

_CHUNK_BYTES = 64 << 10
_SIZE_LOOK_S = 0.5
_DRAIN_LIMIT_S = 0.2
_SIZE = struct.Struct("HHHH")

_log = logging.getLogger(__name__)


class _Line(msgspec.Struct):
    """One pseudo-terminal: our end of it, where it goes, and the terminal whose size it has."""

    ours: int
    target: int
    like: int
    size: bytes = b""


class Pump:
    """Starts its thread with the first terminal; an agent without one has none."""

    def __init__(self) -> None:
        self._lines: dict[int, _Line] = {}
        self._lock = threading.Lock()
        self._epoll: select.epoll | None = None
        self._thread: threading.Thread | None = None
        self._is_over = False

    def follow(self, ours: int, target: int, *, like: int) -> None:
        """From now on; `ours` and `target` are the pump's, which closes them when all who wrote are gone."""
        os.set_blocking(ours, False)
        line = _Line(ours, target, like)
        _keep_size(line)
        with self._lock:
            if self._epoll is None:
                self._epoll = select.epoll()
            self._lines[ours] = line
            self._epoll.register(ours, select.EPOLLIN)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="everstep-pump", daemon=True)
                self._thread.start()

    def drain(self) -> None:
        """Read everything that ranks wrote until now into memory."""
        deadline = time.monotonic() + _DRAIN_LIMIT_S
        with self._lock:
            for fd in list(self._lines):
                while self._take(fd) and time.monotonic() < deadline:
                    pass  # read, not asked for readiness: only that waits for what is under way in the kernel

    def close(self) -> None:
        """Drain what is there. Later writes fail, as on a terminal that was closed."""
        self.drain()
        with self._lock:
            self._is_over = True
            for fd in list(self._lines):
                self._forget(fd)

    def _run(self) -> None:
        looked_at = time.monotonic()
        while not self._is_over:
            assert self._epoll is not None
            try:
                found = self._epoll.poll(_SIZE_LOOK_S)
                with self._lock:
                    for fd, _ in found:
                        self._take(fd)
                    if time.monotonic() - looked_at >= _SIZE_LOOK_S:
                        looked_at = time.monotonic()
                        for line in self._lines.values():
                            _keep_size(line)
            except Exception:
                _log.exception("the pump")  # it must not stop: ranks write
                time.sleep(0.05)

    def _take(self, fd: int) -> bool:
        """Take what one terminal has now, with the lock held; False if there is nothing."""
        line = self._lines.get(fd)
        if line is None:
            return False
        try:
            data = os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""  # the other end is closed everywhere
        if not data:
            self._forget(fd)
            return False
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(line.target, data) :]
        return True

    def _forget(self, fd: int) -> None:
        line = self._lines.pop(fd)
        assert self._epoll is not None
        with contextlib.suppress(OSError):
            self._epoll.unregister(fd)
        os.close(line.ours)
        os.close(line.target)


def _keep_size(line: _Line) -> None:
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(line.like, termios.TIOCGWINSZ, bytes(_SIZE.size))
        if size != line.size:
            fcntl.ioctl(line.ours, termios.TIOCSWINSZ, size)
            line.size = size
