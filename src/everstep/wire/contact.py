"""When the other machine was last known to hear this one: read off the kernel, not off what a process answers.

TCP acknowledges what arrived also while the process behind it is busy, stopped or being replaced by another; only a
link that carries nothing, or a machine that is gone, acknowledges nothing. So an agent can tell "my controller is away"
(training continues) from "I am cut off" (my slot may be reassigned). Used by `wire.link`.
"""

import contextlib
import fcntl
import socket
import struct
import sys
import termios
import time
from collections.abc import Callable
from typing import Any

_ESTABLISHED = 1
_LAST_ACK_AT, _INFO_BYTES = 56, 60  # in struct tcp_info of linux/tcp.h: u32, milliseconds
_KEEPALIVE = (
    (socket.TCP_KEEPIDLE, 1),  # seconds without a word before the kernel asks
    (socket.TCP_KEEPINTVL, 1),
    (socket.TCP_KEEPCNT, 5),
)
FRESH_S = 1.5
"""An idle connection is asked every second; an acknowledgement that is older is none."""


class Contact:
    """The contact of one link, over all its connections. Times are on this process's monotonic clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sock: socket.socket | None = None
        self._answered_at: float | None = None

    def note_refusal(self) -> None:
        """Note a refused connection: nothing listens there now, but the machine answers."""
        self._answered_at = self._clock()

    def make_socket(self, address: tuple[Any, ...]) -> socket.socket:
        """For aiohttp's connector: (family, type, protocol, ...) to a socket that is looked at from then on."""
        family, kind, protocol = address[:3]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        self._sock = sock
        return sock

    def close(self) -> None:
        """Nothing that the machine there says or takes counts any more."""
        self._answered_at = None
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)

    def acknowledged_at(self) -> float | None:
        """When the other side's kernel last acknowledged something; None: there is no connection, or something that
        was sent on it has not arrived yet."""
        sock = self._sock
        if sock is None or sock.fileno() < 0:
            return None
        with contextlib.suppress(OSError):
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
            last_ack_ms = int.from_bytes(info[_LAST_ACK_AT:_INFO_BYTES], sys.byteorder)
            (waiting,) = struct.unpack("=i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))
            if info[0] == _ESTABLISHED and not waiting:
                return self._clock() - last_ack_ms / 1000
        return None

    def is_fresh(self) -> bool:
        """Whether the other side's kernel answers, with or without a listener there."""
        told = [at for at in (self.acknowledged_at(), self._answered_at) if at is not None]
        return bool(told) and self._clock() - max(told) <= FRESH_S
