"""Where the controller listens: sockets that it inherits, plain on loopback only, encrypted everywhere else.

Connections that have not become anything yet cannot pile up: each has seconds, and their number has a limit.
"""

import asyncio
import os
import resource
import socket
import ssl
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
from aiohttp import web

from everstep.controller.peers.accepting import Accepting
from everstep.controller.peers.door import Doors
from everstep.controller.peers.gate import Gate, is_loopback
from everstep.controller.peers.peers import Peers
from everstep.errors import ConfigError
from everstep.web.garbage import garbage_log
from everstep.wire.credentials import CERTIFICATE_NAME, KEY_NAME, fingerprint_of
from everstep.wire.lean_tls import keep_tls_lean
from everstep.wire.strangers.guests import Guests

IDLE_S = 15.0
"""A connection that asks for nothing, or not to the end of its question, is closed."""

BACKLOG = 4096
"""Connections that wait in the kernel: a fleet comes back at once."""

AT_ONCE = 32
"""Connections that are taken before the loop looks after others: some milliseconds."""

MAX_CONNECTIONS = 4096
"""Besides the peers'. Fewer where the process may not open so many files."""


class Place(msgspec.Struct, frozen=True):
    """One inherited socket. It must be encrypted, or it may be plain."""

    sock: socket.socket
    is_encrypted: bool


class Certificate(msgspec.Struct, frozen=True):
    """The run's own, made by the launcher. Peers know it by its fingerprint."""

    path: Path
    key: Path
    fingerprint: str

    @classmethod
    def of_run(cls, run_dir: Path) -> "Certificate | None":
        """None when the run has none. Raises ConfigError when it cannot be used."""
        path = run_dir / CERTIFICATE_NAME
        try:
            return cls(path, run_dir / KEY_NAME, fingerprint_of(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error

    def context(self) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            made.load_cert_chain(self.path, self.key)
        except OSError as error:
            raise ConfigError(f"{self.path} with {self.key.name} cannot be used: {error}") from error
        return made


def check(places: Sequence[Place], certificate: Certificate | None) -> None:
    """Raises ConfigError rather than let anything be served beyond this machine without encryption."""
    for place in places:
        host = place.sock.getsockname()[0]
        if not place.is_encrypted and not is_loopback(place.sock.getsockname()):
            raise ConfigError(f"the controller would listen on {host} without TLS; it may only on loopback")
        if place.is_encrypted and certificate is None:
            raise ConfigError(f"the controller has no {CERTIFICATE_NAME} to listen on {host} with")


async def serve(
    app: web.Application, places: Sequence[Place], certificate: Certificate | None, *, gate: Gate, peers: Peers
) -> web.AppRunner:
    """Start answering on the inherited sockets."""
    check(places, certificate)
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=0.5,
        keepalive_timeout=IDLE_S,
        logger=garbage_log("everstep.controller.http", partial(gate.rejections.note, "garbage")),
    )
    await runner.setup()
    http = runner.server
    assert http is not None, "the runner is set up"
    most = min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    ours = frozenset({os.geteuid(), 0})
    for place in places:  # each has places of its own: clients of one socket take none of another's
        guests = Guests(most // len(places), ours)
        tls = certificate.context() if place.is_encrypted and certificate is not None else None
        doors = Doors(gate, peers, make_http=http, guests=guests, idle_s=IDLE_S)
        await _Site(runner, place.sock, doors, tls).start()
    return runner


class _Site(web.SockSite):
    """aiohttp's, behind doors, which speak TLS where it is to be spoken."""

    def __init__(self, runner: web.AppRunner, sock: socket.socket, doors: Doors, tls: ssl.SSLContext | None) -> None:
        super().__init__(runner, sock, backlog=AT_ONCE)
        self._doors = doors
        self._tls = tls
        self._accepting: Accepting | None = None

    async def start(self) -> None:
        await web.BaseSite.start(self)
        self._sock.listen(BACKLOG)
        if self._tls is not None:
            keep_tls_lean()
            self._accepting = Accepting(self._doors, self._sock, self._tls, AT_ONCE)
            return
        self._server = await asyncio.get_running_loop().create_server(self._doors, sock=self._sock, backlog=AT_ONCE)
        self._sock.listen(BACKLOG)

    async def stop(self) -> None:
        if self._accepting is not None:
            self._accepting.close()
        await super().stop()
        self._doors.owners.close()
