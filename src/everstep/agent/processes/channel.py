"""One local peer (twin, worker, keeper) on the agent's event loop: frames in, frames out, never blocking.

It reads exactly one frame at a time, because the kernel may glue descriptors of a later frame to the bytes of an
earlier one. Garbage closes the channel; what that means is the owner's business.
"""

import asyncio
import collections
import os
import socket
from collections.abc import Callable, Mapping

from everstep.wire import local

MAX_FRAME_BYTES = 16 << 20
"""Limit for a frame of a local peer. The longest honest frames list modules or the stacks of all threads, some hundred
KiB."""

MAX_FRAMES_PER_TURN = 64
"""A peer that writes as fast as we read must not keep the loop, and with it the node's signs of life."""

MAX_LAST_FRAMES = 4096
"""Limit for a peer that has ended; a process that it left may hold its end of the socket, and keep writing."""

OnFrame = Callable[[local.Frame, list[int]], None]
OnClosed = Callable[[str], None]


class Channel:
    """Owns its socket. `on_closed` is called once, with the reason, unless the owner closes first."""

    def __init__(self, sock: socket.socket, on_frame: OnFrame, on_closed: OnClosed) -> None:
        sock.setblocking(False)
        self._sock: socket.socket | None = sock
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._reader = local.FrameReader(MAX_FRAME_BYTES)
        self._outbox: collections.deque[tuple[bytes, tuple[int, ...]]] = collections.deque()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._read)

    @property
    def is_open(self) -> bool:
        return self._sock is not None

    def fileno(self) -> int:
        """The socket's descriptor; -1: it is closed."""
        return self._sock.fileno() if self._sock is not None else -1

    @property
    def num_queued(self) -> int:
        """Frames that the kernel has not taken yet."""
        return len(self._outbox)

    def send(self, frame: Mapping[str, object], fds: tuple[int, ...] = ()) -> bool:
        """Send, or queue what the kernel does not take now. False if the peer is gone."""
        if self._sock is None:
            return False
        # A queued frame may outlive the caller's descriptors.
        self._outbox.append((local.pack(frame), tuple(os.dup(fd) for fd in fds)))
        self._write()
        return self._sock is not None

    def read_now(self) -> None:
        """Take what has arrived, without waiting for the loop's next turn."""
        self._read(MAX_LAST_FRAMES)

    def close(self) -> None:
        """End it without calling `on_closed`."""
        if self._sock is None:
            return
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        self._sock = None
        self._reader.close()
        while self._outbox:
            _close_all(self._outbox.popleft()[1])

    def _fail(self, why: str) -> None:
        if self._sock is not None:
            self.close()
            self._on_closed(why)

    def _write(self) -> None:
        while self._outbox and self._sock is not None:
            data, fds = self._outbox[0]
            try:
                sent = socket.send_fds(self._sock, [data], list(fds)) if fds else self._sock.send(data)
            except BlockingIOError:
                self._loop.add_writer(self._sock, self._write)
                return
            except OSError as error:
                self._fail(str(error))
                return
            _close_all(fds)
            if sent < len(data):
                self._outbox[0] = (data[sent:], ())
            else:
                self._outbox.popleft()
        if self._sock is not None:
            self._loop.remove_writer(self._sock)

    def _read(self, most: int = MAX_FRAMES_PER_TURN) -> None:
        while self._sock is not None and most > 0:
            try:
                data, fds = local.receive(self._sock, self._reader.wanted)
                if not data:
                    self._fail("closed by the other side")
                    return
                self._reader.feed(data, fds)
                received = self._reader.next()
            except BlockingIOError:
                return
            except (OSError, local.FrameError) as error:
                self._fail(str(error))
                return
            if received is not None:
                most -= 1
                self._on_frame(*received)


def _close_all(fds: tuple[int, ...]) -> None:
    for fd in fds:
        os.close(fd)
