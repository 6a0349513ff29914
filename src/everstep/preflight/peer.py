"""The other side of the network check: answers round trips, takes bytes, gives bytes. `everstep check --serve PORT`.

One line asks, everything after it is filler: no fact about the node is sent, nothing received is kept or interpreted.
The client proves that it knows the token (HMAC over the server's nonce; the token itself is never sent). Each request
is bounded in time, and only a few are served at once.
"""

import errno
import hashlib
import hmac
import os
import socket
import threading
import time
from contextlib import closing, nullcontext, suppress
from typing import NoReturn

import msgspec

from everstep.wire.strangers.guests import Guests
from everstep.wire.strangers.owner import Owners

GREETING = b"everstep-check 1 "
MESSAGE_BYTES = 64
CHUNK_BYTES = 1 << 20
MAX_S = 60.0
MAX_ROUND_TRIPS = 100_000
_MAX_AT_ONCE = 8
_MAX_WAITING = 64  # connections that have not shown the token; each has _PROOF_S, a user or an address an eighth
_PROOF_S = 5.0
_SILENCE_S = 10.0  # a connection that says nothing is closed
_RETRY_ACCEPT_S = 0.1
_LINE_BYTES = 256


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes and time that the receiving side counted, between the first and the last byte."""

    num_bytes: int
    took_s: float


def proof(token: str, nonce: bytes) -> str:
    return hmac.new(token.encode(), nonce, hashlib.sha256).hexdigest()


def listen(host: str, port: int) -> socket.socket:
    """Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_MAX_WAITING)


def serve(listener: socket.socket, token: str, *, requests: int | None = None) -> None:
    """Until interrupted, or for so many requests one after another. Raises OSError."""
    if requests is not None:
        for _ in range(requests):
            connection, _ = listener.accept()
            _answer(connection, token)
        return
    with closing(_Waiting()) as waiting:
        _serve_all(listener, token, waiting)


def _serve_all(listener: socket.socket, token: str, waiting: "_Waiting") -> NoReturn:
    free = threading.BoundedSemaphore(_MAX_AT_ONCE)
    while True:
        try:
            connection, address = listener.accept()
        except OSError as error:
            if error.errno in (errno.EBADF, errno.EINVAL):  # it does not listen any more
                raise
            time.sleep(_RETRY_ACCEPT_S)  # gone already, or out of descriptors for as long as a crowd lasts
            continue
        stranger = waiting.admit(connection, address)
        if stranger is None:
            continue
        try:
            threading.Thread(target=_answer, args=(connection, token, free, stranger), daemon=True).start()
        except RuntimeError:  # no room for one more
            stranger.leave()
            connection.close()


class _Stranger:
    """A connection that has not shown the token: one of `Guests`, its thread closes it."""

    is_busy = False

    def __init__(self, connection: socket.socket, waiting: "_Waiting") -> None:
        self._connection, self._waiting = connection, waiting

    def abort(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def leave(self) -> None:
        self._waiting.leave(self)


class _Waiting:
    """Clients that have shown no token yet. A crowd keeps out itself, also one that comes again and again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guests, self._owners = Guests(_MAX_WAITING), Owners()

    def close(self) -> None:
        self._owners.close()

    def admit(self, connection: socket.socket, address: object) -> _Stranger | None:
        """None: it is closed."""
        stranger = _Stranger(connection, self)
        with self._lock:
            is_in = self._guests.admit(stranger, self._owners.who(address, connection.getsockname()))
        if not is_in:
            connection.close()
        return stranger if is_in else None

    def leave(self, stranger: _Stranger) -> None:
        with self._lock:
            self._guests.leave(stranger)


def _answer(
    connection: socket.socket,
    token: str,
    free: threading.BoundedSemaphore | None = None,
    stranger: _Stranger | None = None,
) -> None:
    """One request; whatever the other side does wrong ends only its connection. `free`: places of those that have the
    token."""
    with connection, suppress(OSError, ValueError):
        try:
            asked = _asked(connection, token)
        finally:
            if stranger is not None:
                stranger.leave()
        if asked is None:
            return
        with free or nullcontext():
            connection.sendall(b"ok\n")
            _serve(connection, *asked)


def _asked(connection: socket.socket, token: str) -> tuple[str, str] | None:
    """Read the peer's request; None if it does not have the token. All of it has to come within a few seconds, however
    it is cut into bytes."""
    connection.settimeout(_PROOF_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    nonce = os.urandom(16).hex().encode()
    connection.sendall(GREETING + nonce + b"\n")
    given, what, number = read_line(connection, time.monotonic() + _PROOF_S).decode("ascii").split()
    connection.settimeout(_SILENCE_S)
    if not hmac.compare_digest(given, proof(token, nonce)):
        connection.sendall(b"no: wrong token\n")
        return None
    return what, number


def _serve(connection: socket.socket, what: str, number: str) -> None:
    match what:
        case "echo":
            _echo(connection, min(int(number), MAX_ROUND_TRIPS))
        case "take":
            taken = take(connection, min(float(number), MAX_S))
            connection.sendall(msgspec.json.encode(taken) + b"\n")
        case "give":
            give(connection, min(float(number), MAX_S))


def read_line(connection: socket.socket, deadline: float | None = None) -> bytes:
    """Raises OSError, ValueError. Byte by byte: nothing behind the line may be taken. `deadline`: monotonic, for all
    of it."""
    line = b""
    while not line.endswith(b"\n"):
        if deadline is not None:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
        byte = connection.recv(1)
        if not byte or len(line) >= _LINE_BYTES:
            raise ValueError(f"no whole line: {line[:40]!r}")
        line += byte
    return line[:-1]


def read_exactly(connection: socket.socket, size: int) -> bytes:
    """Raises OSError, ValueError."""
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ValueError("the connection ended early")
        data += part
    return data


def _echo(connection: socket.socket, count: int) -> None:
    for _ in range(count):
        connection.sendall(read_exactly(connection, MESSAGE_BYTES))


def take(connection: socket.socket, limit_s: float) -> Taken:
    """Receives until the other side says that it is done, or for a little longer than agreed."""
    buffer = bytearray(CHUNK_BYTES)
    total = 0
    begun = last = time.perf_counter()
    while last - begun < limit_s + 5.0:
        got = connection.recv_into(buffer)
        if not got:
            break
        if not total:
            begun = time.perf_counter()
        last = time.perf_counter()
        total += got
    return Taken(num_bytes=total, took_s=last - begun)


def give(connection: socket.socket, limit_s: float) -> None:
    """Sends zeros for so long, then says that it is done."""
    filler = memoryview(bytearray(CHUNK_BYTES))
    deadline = time.perf_counter() + limit_s
    with suppress(TimeoutError):
        while (left := deadline - time.perf_counter()) > 0:
            connection.settimeout(left)  # a slow link must not block the end
            connection.send(filler)
    connection.settimeout(_SILENCE_S)
    connection.shutdown(socket.SHUT_WR)
