"""The controller's encrypted port: a connection is only a socket until its first byte has arrived.

TLS takes some 70 KiB per connection from its start, and a client that connects and sends nothing shall not have them.
Each connection counts among the guests from accept on, and keeps its place when it becomes a door.
"""

import asyncio
import errno
import logging
import socket
import ssl

from everstep.controller.peers.door import Door, Doors
from everstep.wire.strangers.first_byte import has_said

TLS_HANDSHAKE_S = 10.0
"""From the connection to the first byte, and again to the end of the handshake."""

TLS_END_S = 2.0
"""For the end of TLS, after which the socket is closed."""

PAUSE_S = 1.0
"""Where this process has no descriptor left, before the next try."""

_GONE_ALREADY = (errno.ECONNABORTED, errno.EPROTO, errno.EPERM)

log = logging.getLogger(__name__)


class Accepting:
    """`close` it. `at_once`: accepted before the loop looks after others."""

    def __init__(self, doors: Doors, sock: socket.socket, tls: ssl.SSLContext, at_once: int) -> None:
        self._doors = doors
        self._sock = sock
        self._tls = tls
        self._at_once = at_once
        self._waiting: set[_Waiting] = set()
        self._pause: asyncio.TimerHandle | None = None
        sock.setblocking(False)
        self._begin()

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        if self._sock.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._sock)
            self._sock.close()
        for each in tuple(self._waiting):
            each.end()

    def _begin(self) -> None:
        self._pause = None
        asyncio.get_running_loop().add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        for _ in range(self._at_once):
            try:
                made, _peer = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _GONE_ALREADY:
                    continue
                log.warning("no connection can be accepted at the moment: %s", error)
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._sock)
                self._pause = loop.call_later(PAUSE_S, self._begin)
                return
            made.setblocking(False)
            _Waiting(self._doors, made, self._tls, self._waiting).begin()


class _Waiting:
    """A guest that has not said anything, or not its whole handshake. Owns its socket until the handshake begins."""

    is_busy = False

    def __init__(self, doors: Doors, sock: socket.socket, tls: ssl.SSLContext, all_waiting: "set[_Waiting]") -> None:
        self._doors = doors
        self._sock = sock
        self._tls = tls
        self._all = all_waiting
        self._timer: asyncio.TimerHandle | None = None
        self._is_said = False

    def begin(self) -> None:
        try:
            peer, here = self._sock.getpeername(), self._sock.getsockname()
        except OSError:  # it has gone
            self._sock.close()
            return
        if not self._doors.admit(self, peer, here):
            self._sock.close()
            return
        self._all.add(self)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(TLS_HANDSHAKE_S, self._expire)
        loop.add_reader(self._sock, self._hear)

    def abort(self) -> None:
        """Its place is another's."""
        self._doors.gate.rejections.note("crowd", "an idle connection that belongs to no peer made room for another")
        self.end()

    def end(self) -> None:
        self._all.discard(self)
        if self._is_said:  # asyncio's by now, which sees that it has ended
            try:
                self._sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has ended by itself
            return
        self._stop_waiting()
        self._sock.close()

    def _expire(self) -> None:
        self._doors.gate.rejections.note("silence", "no TLS handshake: nothing was said")
        self._doors.guests.leave(self)
        self.end()

    def _hear(self) -> None:
        if not has_said(self._sock):  # it only ends
            self._doors.guests.leave(self)
            self.end()
            return
        self._stop_waiting()
        self._is_said = True
        self._doors.later(self._encrypt())

    def _stop_waiting(self) -> None:
        asyncio.get_running_loop().remove_reader(self._sock)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _encrypt(self) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: Door(self._doors, self),
                self._sock,
                ssl=self._tls,
                ssl_handshake_timeout=TLS_HANDSHAKE_S,
                ssl_shutdown_timeout=TLS_END_S,
            )
        except OSError as error:
            if self in self._all:  # else it is counted already
                kind = "garbage" if isinstance(error, ssl.SSLError) else "silence"
                self._doors.gate.rejections.note(kind, f"no TLS handshake: {error}")
            error.__traceback__ = None  # else its frames, and the buffers in them, wait for the garbage collector
        finally:
            self._all.discard(self)
            self._doors.guests.leave(self)  # where no door has taken its place over
