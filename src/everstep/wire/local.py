"""Messages between processes of one machine (agent, twin, worker, launcher's keeper) over a Unix stream socket.

A frame is a 4-byte little-endian length and a JSON object; file descriptors ride on the frame's first byte. Only the
standard library: it is imported inside the user's training process.
"""

import array
import json
import os
import socket
import struct
from collections.abc import Mapping
from typing import Any

_LENGTH = struct.Struct("<I")
MAX_FRAME_BYTES = 64 << 20  # an assignment carries an environment; far above any real one
MAX_FDS = 250
"""Descriptors of one frame; the kernel passes no more with one message."""

Frame = dict[str, Any]
"""A received frame: its content is a type of `wire.frames`, if the other side is honest."""


class FrameError(Exception):
    """The other side sent something that is not a frame."""


def pack(frame: Mapping[str, object]) -> bytes:
    """The frame's bytes, for a caller that sends them itself."""
    body = json.dumps(frame, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


def send(sock: socket.socket, frame: Mapping[str, object], fds: tuple[int, ...] = ()) -> None:
    """Send one frame, blocking. Raises OSError when the other side is gone."""
    data = pack(frame)
    if fds:
        sent = socket.send_fds(sock, [data], list(fds))
        data = data[sent:]
    if data:
        sock.sendall(data)


def receive(sock: socket.socket, num_bytes: int) -> tuple[bytes, list[int]]:
    """At most `num_bytes`, and the descriptors that rode on them, closed on exec. `socket.recv_fds` takes flags and
    drops them, so descriptors would leak into every program that is started."""
    fds = array.array("i")
    size = socket.CMSG_LEN(MAX_FDS * fds.itemsize)
    data, ancillary, _, _ = sock.recvmsg(num_bytes, size, socket.MSG_CMSG_CLOEXEC)
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    return data, list(fds)


def recv(sock: socket.socket) -> tuple[Frame, list[int]] | None:
    """Receive one frame, blocking; None when the other side closed."""
    reader = FrameReader()
    while True:
        frame = reader.next()
        if frame is not None:
            return frame
        # One frame at a time: never read past it, the rest belongs to the next call.
        data, fds = receive(sock, reader.wanted)
        if not data:
            return None
        reader.feed(data, fds)


class FrameReader:
    """Cuts a byte stream into frames. Feed it what arrived, take frames until None. After a FrameError close it."""

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_bytes = max_bytes
        self._data = bytearray()
        self._fds: list[int] = []

    @property
    def wanted(self) -> int:
        """Bytes that are missing for the next frame."""
        if len(self._data) < _LENGTH.size:
            return _LENGTH.size - len(self._data)
        return self._frame_bytes() - len(self._data)

    def feed(self, data: bytes, fds: list[int] | None = None) -> None:
        """Raises FrameError for more descriptors than a frame can have: a byte at a time, each could bring its own."""
        self._data += data
        self._fds += fds or []
        if len(self._fds) > MAX_FDS:
            raise FrameError(f"more than {MAX_FDS} descriptors for one frame")

    def close(self) -> None:
        """Close the descriptors of a frame that did not come whole."""
        while self._fds:
            os.close(self._fds.pop())

    def next(self) -> tuple[Frame, list[int]] | None:
        if len(self._data) < _LENGTH.size or len(self._data) < self._frame_bytes():
            return None
        end = self._frame_bytes()
        try:
            frame = json.loads(self._data[_LENGTH.size : end])
        except (ValueError, RecursionError) as error:  # or a rank that nests deeply would end its agent
            raise FrameError(f"not JSON: {error}") from error
        if not isinstance(frame, dict):
            raise FrameError(f"expected an object, got {type(frame).__name__}")
        del self._data[:end]
        fds, self._fds = self._fds, []
        return frame, fds

    def _frame_bytes(self) -> int:
        (length,) = _LENGTH.unpack_from(self._data)
        if length > self._max_bytes:
            raise FrameError(f"frame of {length} bytes; at most {self._max_bytes}")
        return int(_LENGTH.size + length)
