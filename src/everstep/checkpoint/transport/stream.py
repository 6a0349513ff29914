"""One connection, blocking, with a limit on every wait.

Answers: how do bytes get from and to a peer that may stop in the middle, be stopped, or trickle. It runs in the
thread of one transfer; `abort` may be called from any other. It knows nothing of what the bytes mean.
"""

import contextlib
import os
import socket
import struct
import threading
import time

_LEAST_WAIT_S = 0.001  # zero would mean no limit to the kernel


class StreamError(Exception):
    """The connection is unusable. The message says why, without naming the peer. `is_silence`: it is open, but the peer
    does not answer, and waiting once more would take as long."""

    def __init__(self, why: str, *, is_silence: bool = False) -> None:
        super().__init__(why)
        self.is_silence = is_silence


class Stream:
    """Owns the socket. A wait without a single byte of progress ends after `patience_s`."""

    def __init__(self, sock: socket.socket, patience_s: float) -> None:
        self._sock = sock
        self._patience_s = patience_s
        self._ends_at: float | None = None
        self._aborted = threading.Event()
        self._closing = threading.Lock()
        self._is_closed = False
        self.is_busy = False  # as one that has proven nothing (`wire.strangers.guests`) it can always be cut
        sock.setblocking(True)  # limits are the kernel's: with Python's own a read could not wait for all of its bytes
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._wait_at_most(patience_s)

    def hurry(self, limit_s: float | None) -> None:
        """Limit everything from now on to `limit_s` in all; None: no limit while the peer makes progress."""
        self._ends_at = None if limit_s is None else time.monotonic() + limit_s
        self._wait_at_most(self._patience_s)

    def receive(self, num_bytes: int) -> bytes:
        data = bytearray(num_bytes)
        self.receive_into(memoryview(data))
        return bytes(data)

    def receive_into(self, view: memoryview) -> None:
        """Fill all of it."""
        done = 0
        while done < len(view):
            self._keep_time()
            try:
                num_bytes = self._take(view[done:])
            except OSError as error:
                raise self._failed(error) from error
            if num_bytes == 0:
                raise self._failed(None)
            done += num_bytes

    def send(self, data: bytes, *, more: bool = False) -> None:
        """`more`: other bytes follow at once and may share a packet."""
        view = memoryview(data)
        while view:
            self._keep_time()
            try:
                view = view[self._give(view, more=more) :]
            except OSError as error:
                raise self._failed(error) from error

    def send_file(self, fd: int, offset: int, num_bytes: int) -> None:
        """From a file without copying: the kernel sends the file's own pages."""
        end = offset + num_bytes
        while offset < end:
            self._keep_time()
            try:
                sent = os.sendfile(self._sock.fileno(), fd, offset, end - offset)
            except OSError as error:
                raise self._failed(error) from error
            if sent == 0:
                raise StreamError(f"was to get bytes beyond the end of the memory at {offset}")
            offset += sent

    def is_aborted(self) -> bool:
        return self._aborted.is_set()

    def abort(self) -> None:
        """Abort the stream, from any thread: pending calls raise StreamError now."""
        self._aborted.set()
        with self._closing, contextlib.suppress(OSError):
            if not self._is_closed:
                self._shut_down()

    def _take(self, view: memoryview) -> int:
        return self._sock.recv_into(view, 0, socket.MSG_WAITALL)

    def _give(self, view: memoryview, *, more: bool) -> int:
        return self._sock.send(view, socket.MSG_MORE if more else 0)

    def _shut_down(self) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._closing:
            self._is_closed = True
            self._sock.close()

    def _keep_time(self) -> None:
        if self._aborted.is_set():
            raise self._failed(None)
        if self._ends_at is not None:
            left_s = self._ends_at - time.monotonic()
            if left_s <= 0:
                raise StreamError("did not answer in time", is_silence=True)
            self._wait_at_most(min(left_s, self._patience_s))

    def _wait_at_most(self, wait_s: float) -> None:
        whole, part = divmod(max(wait_s, _LEAST_WAIT_S), 1)
        limit = struct.pack("@ll", int(whole), int(part * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._sock.setsockopt(socket.SOL_SOCKET, option, limit)

    def _failed(self, error: OSError | None) -> StreamError:
        if self._aborted.is_set():
            return StreamError("was given up here")
        if error is None:
            return StreamError("closed the connection")
        if isinstance(error, BlockingIOError):
            return StreamError(f"made no progress for {self._patience_s:.1f} s", is_silence=True)
        return StreamError(f"lost the connection: {error.strerror or error}")
