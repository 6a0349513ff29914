"""Where hosts join: one listening socket at the endpoint, TLS 1.3, and a proof of the token before anything is read.

A stranger takes a place for seconds and a line in the log once a minute, and never the place of another user's host: a
user of this machine, or an address, has an eighth of the places. An authenticated host becomes a `Line`, and belongs to
the engine from then on.
"""

import asyncio
import logging
import os
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

from everstep.errors import ConfigError, WireError
from everstep.version import __version__
from everstep.wire.credentials import RANDOM_BYTES, fingerprint_of
from everstep.wire.heirs import AskVote, AskWho, FromHeir, public
from everstep.wire.joining import (
    MAX_STRANGER_BYTES,
    PROTOCOL,
    Challenge,
    FromHead,
    FromHost,
    Join,
    Knock,
    Proofs,
    Proven,
    Refused,
    from_host,
    packed,
)
from everstep.wire.lean_tls import keep_tls_lean
from everstep.wire.strangers.first_byte import hear
from everstep.wire.strangers.guests import Guests
from everstep.wire.strangers.owner import Owners
from everstep.wire.strangers.rejections import Rejections

GREETING_S = 10.0
MAX_STRANGERS = 64
"""Connections that have proven nothing yet, those in a TLS handshake included."""

REFUSAL_DELAY_S = 0.2
"""How long an unauthenticated client keeps its place: a handshake costs CPU, and there are to be few a second."""

SHUTDOWN_S = 2.0
"""Limit for the end of TLS, after which the socket is closed."""

RETRY_ACCEPT_S = 0.1
MAX_UNSENT_BYTES = 32 << 20
"""A host that leaves so much unread is cut off; when it comes back, its commands are sent again."""

log = logging.getLogger("everstep.launcher")


class Line:
    """One connection to a host that has proven that it knows the token."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.peer = str((writer.get_extra_info("peername") or ["?"])[0])
        self.voter = ""  # the host that it has proven to be, by its public session
        self.is_of_job = False  # ... and that it is of the scheduler's job

    def send(self, message: FromHead) -> None:
        """Send without waiting; raises nothing. The reader notices when the connection ends."""
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


class _Stranger:
    """A connection that has proven nothing: one of `Guests`."""

    def __init__(self, sock: socket.socket, where: str) -> None:
        self.sock = sock
        self.where = where
        self.is_busy = False
        self.is_transports = False  # which closes the socket
        self.task: asyncio.Task[None] | None = None

    def abort(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def end(self, _: object) -> None:
        """The task is over, perhaps before it began."""
        if not self.is_transports:
            self.sock.close()


Welcome = Callable[[Join, Line], Awaitable[None]]
"""Has the line until it returns."""

Answer = Callable[[FromHeir, Line], Awaitable[None]]
"""Answers a client that does not join, but asks which host has the controller; owns the line until it returns."""


async def _know_nothing(question: FromHeir, line: Line) -> None:
    raise WireError("no question is answered here")


class Door:
    """`welcome` is called for each host that has proven itself and said what it is."""

    def __init__(
        self,
        sock: socket.socket,
        certificate: Path,
        key: Path,
        token: Proofs,
        welcome: Welcome,
        on_question: Answer = _know_nothing,
    ) -> None:
        """Raises ConfigError when the certificate cannot be used."""
        self.sock = sock
        self._token = token
        self.welcome = welcome
        self.on_question = on_question
        self._fingerprint = fingerprint_of(certificate.read_text())
        keep_tls_lean()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            self._context.load_cert_chain(certificate, key)
        except OSError as error:
            raise ConfigError(f"{certificate} cannot be used: {error}") from error
        self.rejections = Rejections(log=log)
        self._guests = Guests(MAX_STRANGERS, frozenset({os.geteuid(), 0}))
        self._owners = Owners()
        self.more: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._lines: set[Line] = set()

    async def open(self) -> None:
        self._open_at(self.sock)

    def also_at(self, sock: socket.socket) -> None:
        """From now on; it is closed with this door."""
        self.more.append(sock)
        self._open_at(sock)

    def _open_at(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._accepting.append(asyncio.create_task(self._accept(sock)))

    async def close(self) -> None:
        tasks = [*self._tasks, *self._accepting]
        for task in tasks:
            task.cancel()
        lines = list(self._lines)
        await asyncio.gather(*tasks, return_exceptions=True)
        for line in lines:
            line.abort()
        for sock in (self.sock, *self.more):
            sock.close()
        self._owners.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, peer = await loop.sock_accept(listening)
            except OSError as error:  # out of descriptors, or the peer is gone already
                self.rejections.note("crowd", f"a connection to the endpoint was not taken: {error}")
                await asyncio.sleep(RETRY_ACCEPT_S)
                continue
            try:
                self._take(sock, peer)
            except OSError:  # gone before it was looked at
                sock.close()

    def _take(self, sock: socket.socket, peer: tuple[object, ...]) -> None:
        """Raises OSError."""
        user = self._owners.who(peer, sock.getsockname())
        keep_alive(sock)  # a machine that is gone is noticed: nothing else would ever be heard of it
        stranger = _Stranger(sock, str(peer[0]))
        if not self._guests.admit(stranger, user):
            self.rejections.note("crowd", f"too many connections from {peer[0]} to the endpoint have proven nothing")
            sock.close()
            return
        stranger.task = asyncio.create_task(self._serve(stranger))
        self._tasks.add(stranger.task)
        stranger.task.add_done_callback(self._tasks.discard)
        stranger.task.add_done_callback(stranger.end)

    async def _serve(self, stranger: _Stranger) -> None:
        """The life of one connection. Nothing leaves it."""
        try:
            host = await self._let_in(stranger)
            if host is None:
                stranger.is_busy = True  # its place is not another's before its time is over
                await asyncio.sleep(REFUSAL_DELAY_S)
                return
            self._guests.leave(stranger)
            await self._live(*host)
        except asyncio.CancelledError:
            pass
        except Exception:
            log.exception("a connection from %s to the endpoint failed", stranger.where)
        finally:
            self._guests.leave(stranger)

    async def _let_in(self, stranger: _Stranger) -> tuple[Join, Line] | None:
        """None: it is none of ours."""
        try:
            return await self._greet(stranger)
        except (WireError, EOFError, OSError, TimeoutError) as error:
            kind = "silence" if isinstance(error, TimeoutError) else "garbage"
            self.rejections.note(kind, f"{stranger.where} at the endpoint: {str(error) or type(error).__name__}")
            error.__traceback__ = None  # else its frames, and the buffers in them, wait for the garbage collector
            return None

    async def _live(self, join: Join, line: Line) -> None:
        try:
            await self.welcome(join, line)
        except (WireError, EOFError, OSError, TimeoutError) as error:
            log.info("the connection to host %s ended: %s", line.peer, str(error) or type(error).__name__)
        finally:
            self._lines.discard(line)
            line.close()

    async def _greet(self, stranger: _Stranger) -> tuple[Join, Line] | None:
        """None: it was refused. Raises WireError, EOFError, OSError, TimeoutError."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        async with asyncio.timeout(GREETING_S):
            await hear(stranger.sock)
            stranger.is_transports = True
            transport, protocol = await loop.connect_accepted_socket(
                lambda: asyncio.StreamReaderProtocol(reader),
                stranger.sock,
                ssl=self._context,
                ssl_handshake_timeout=GREETING_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
            line = Line(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
            self._lines.add(line)
            try:
                join = await self._ask(line, reader)
            except BaseException:
                self._lines.discard(line)
                line.abort()
                raise
        if join is None:
            self._lines.discard(line)
            line.close()
            return None
        return join, line

    async def _ask(self, line: Line, reader: asyncio.StreamReader) -> Join | None:
        nonce = secrets.token_hex(RANDOM_BYTES)
        line.send(Challenge(nonce=nonce))
        knock = await from_host(reader, MAX_STRANGER_BYTES)
        if not isinstance(knock, Knock):
            raise WireError("it does not begin with a proof")
        proofs = self._token.of_kind(knock.proof)
        why = self._objection(knock, nonce, proofs)
        if why:
            self.rejections.note("unauthenticated", f"a host at {line.peer} was refused: {why}")
            line.send(Refused(why=why))
            return None
        line.voter, line.is_of_job = proofs.voter, proofs.is_of_job
        line.send(Proven(proof=proofs.proof("head", self._fingerprint, nonce, knock.nonce)))
        join = await line.receive()
        if isinstance(join, AskVote | AskWho):
            await self.on_question(join, line)
            return None
        if not isinstance(join, Join):
            raise WireError("it does not say what it is")
        if line.voter and line.voter != public(join.session):
            raise WireError("it joins in the name of another host")
        return join

    def _objection(self, knock: Knock, nonce: str, proofs: Proofs) -> str:
        if not proofs.is_right(knock.proof, "host", self._fingerprint, nonce, knock.nonce[:MAX_STRANGER_BYTES]):
            return "its join token is not this run's"
        if knock.protocol == PROTOCOL:
            return ""
        if knock.everstep_version == __version__:  # of a development version there are many
            return (
                f"both are everstep {__version__}, but of different states of its code (hosts join by protocol "
                f"{knock.protocol} there, {PROTOCOL} here): install the same package, or the same commit, on all hosts"
            )
        its = knock.everstep_version[:40]
        return f"it has everstep {its!a}, this run everstep {__version__}: install the same on all hosts"


def keep_alive(sock: socket.socket) -> None:
    """Asked after a second of silence, and given up after some more. Raises OSError."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 5)):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 6000)
