"""Where hosts join: one listening socket at the endpoint, TLS 1.3, and a proof of the token before anything is read.

Strangers cost a place for seconds and a line in the log. Whoever has proven itself becomes a `Line`, and belongs to the
engine from then on.
"""

import asyncio
import contextlib
import hashlib
import logging
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

from everstep.errors import ConfigError, WireError
from everstep.version import __version__
from everstep.wire.credentials import RANDOM_BYTES, fingerprint_of
from everstep.wire.joining import (
    MAX_STRANGER_BYTES,
    PROTOCOL,
    Challenge,
    FromHead,
    FromHost,
    Join,
    JoinToken,
    Knock,
    Proven,
    Refused,
    from_host,
    packed,
)

GREETING_S = 10.0
MAX_STRANGERS = 64
MAX_UNSENT_BYTES = 32 << 20
"""A host that reads nothing for so long is cut off; it comes back and is told again."""

log = logging.getLogger("everstep.launcher")


class Line:
    """One connection to a host that has proven that it knows the token."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.peer = str((writer.get_extra_info("peername") or ["?"])[0])

    def send(self, message: FromHead) -> None:
        """Never waits, raises nothing: an end is noticed by who reads."""
        if self._writer.is_closing():
            return
        self._writer.write(packed(message))
        if self._writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self._writer.transport.abort()

    async def receive(self) -> FromHost:
        """Raises WireError, EOFError, OSError."""
        return await from_host(self._reader)

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        """Without waiting until the other side has agreed."""
        self._writer.transport.abort()


Welcome = Callable[[Join, Line], Awaitable[None]]
"""Has the line until it returns."""


class Door:
    """`welcome` is called for each host that has proven itself and said what it is."""

    def __init__(self, sock: socket.socket, certificate: Path, key: Path, token: JoinToken, welcome: Welcome) -> None:
        """Raises ConfigError when the certificate cannot be used."""
        self._sock = sock
        self._token = token
        self._welcome = welcome
        self._fingerprint = fingerprint_of(certificate.read_text())
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            self._context.load_cert_chain(certificate, key)
        except OSError as error:
            raise ConfigError(f"{certificate} cannot be used: {error}") from error
        self._num_strangers = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._lines: set[Line] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, sock=self._sock, ssl=self._context, ssl_handshake_timeout=GREETING_S
        )

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        lines = list(self._lines)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for line in lines:
            line.abort()
        self._sock.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The life of one connection. Nothing leaves it."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        line = Line(reader, writer)
        self._lines.add(line)
        try:
            join = await self._greet(line, reader)
            if join is not None:
                _mind(writer)
                await self._welcome(join, line)
        except (WireError, EOFError, OSError, TimeoutError) as error:
            log.info("a connection from %s to the endpoint ended: %s", line.peer, error or type(error).__name__)
        except asyncio.CancelledError:
            pass
        except Exception:
            log.exception("a connection from %s to the endpoint failed", line.peer)
        finally:
            self._tasks.discard(task)
            self._lines.discard(line)
            line.close()

    async def _greet(self, line: Line, reader: asyncio.StreamReader) -> Join | None:
        """None: it was refused. Raises WireError, EOFError, OSError, TimeoutError."""
        if self._num_strangers >= MAX_STRANGERS:
            raise WireError(f"{MAX_STRANGERS} others are being greeted")
        self._num_strangers += 1
        try:
            async with asyncio.timeout(GREETING_S):
                nonce = secrets.token_hex(RANDOM_BYTES)
                line.send(Challenge(nonce=nonce))
                knock = await from_host(reader, MAX_STRANGER_BYTES)
                if not isinstance(knock, Knock):
                    raise WireError("it does not begin with a proof")
                why = self._objection(knock, nonce)
                if why:
                    log.warning("a host at %s was refused: %s", line.peer, why)
                    line.send(Refused(why=why))
                    return None
                line.send(Proven(proof=self._token.proof("head", self._fingerprint, nonce, knock.nonce)))
                join = await line.receive()
                if not isinstance(join, Join):
                    raise WireError("it does not say what it is")
                return join
        finally:
            self._num_strangers -= 1

    def _objection(self, knock: Knock, nonce: str) -> str:
        if not self._token.is_right(knock.proof, "host", self._fingerprint, nonce, knock.nonce[:MAX_STRANGER_BYTES]):
            return "its join token is not this run's"
        if knock.protocol != PROTOCOL:
            return (
                f"it has everstep {knock.everstep_version[:40]!a}, this run everstep {__version__}: install the same "
                "on all hosts"
            )
        return ""


def _mind(writer: asyncio.StreamWriter) -> None:
    """So that a machine that is gone is noticed: nothing else would ever be heard of it."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            keep_alive(sock)


def keep_alive(sock: socket.socket) -> None:
    """Asked after a second of silence, and given up after some more. Raises OSError."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 5)):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 6000)


def fingerprint_of_der(certificate: bytes) -> str:
    return hashlib.sha256(certificate).hexdigest()
