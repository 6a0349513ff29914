"""The peers' end of the link: agents and the launcher connect, introduce themselves, report, and get commands.

It turns frames into `Input`s on the controller's queue and counts whatever is not one; it decides nothing and never
raises for what a peer sends. A peer that cannot be understood is told so in one sentence and let go.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import WSCloseCode, WSMsgType, web

from everstep.errors import WireError
from everstep.model.actions import Action
from everstep.model.events import Event
from everstep.model.spec import RunSpec
from everstep.version import __version__
from everstep.wire.codec import MAX_MESSAGE_BYTES, decode_from_peer, encode
from everstep.wire.messages import (
    PROTOCOL,
    Ack,
    Command,
    FromController,
    Hello,
    Reject,
    Report,
    Welcome,
)

log = logging.getLogger("everstep.controller")

HELLO_TIMEOUT_S = 10.0
"""From the connection to Hello. Too short: a stopped machine's agent is turned away. Too long: idle sockets pile up."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """One thing to handle, in order of arrival."""

    event: Event
    source: str = ""  # peer that reported it; empty: the controller's own
    seq: int = 0
    settled: Callable[[bool], None] | None = None  # told whether it went on record (HTTP requests wait for it)

    @property
    def key(self) -> str:
        """Recognises the same input after a crash."""
        return f"{self.source}:{self.seq}" if self.source else f"own:{self.event!r}"


class Peer:
    """One connection. Sending never blocks: a peer that does not read must not hold up the decisions for others."""

    def __init__(self, name: str, role: str, socket: web.WebSocketResponse) -> None:
        self.name = name
        self.role = role
        self.socket = socket
        self._outbox: asyncio.Queue[FromController] = asyncio.Queue()

    def send(self, message: FromController) -> None:
        self._outbox.put_nowait(message)

    async def drain(self) -> None:
        """Sends what `send` queued, until cancelled or the connection is gone."""
        with contextlib.suppress(ConnectionError):
            while True:
                await self.socket.send_bytes(encode(await self._outbox.get()))


class Peers:
    def __init__(
        self,
        *,
        run: str,
        spec: RunSpec,
        put: "asyncio.Queue[Input]",
        last_seq: Callable[[str], int],
        on_connected: Callable[[Peer], None],
        on_gone: Callable[[Peer], None],
    ) -> None:
        self._run = run
        self._spec = spec
        self._queue = put
        self._last_seq = last_seq
        self._on_connected = on_connected
        self._on_gone = on_gone
        self._connected: dict[str, Peer] = {}
        self.refused: Counter[str] = Counter()  # by kind: what was dropped instead of believed

    def get(self, name: str) -> Peer | None:
        return self._connected.get(name)

    @property
    def names(self) -> list[str]:
        return sorted(self._connected)

    def launcher(self) -> Peer | None:
        return next((peer for peer in self._connected.values() if peer.role == "launcher"), None)

    def agents(self) -> list[Peer]:
        return [peer for peer in self._connected.values() if peer.role == "agent"]

    def send(self, peer: Peer, command_id: str, action: Action) -> None:
        peer.send(Command(id=command_id, action=action))

    def ack(self, source: str, seq: int) -> None:
        peer = self._connected.get(source)
        if peer is not None:
            peer.send(Ack(source_seq=seq))

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """The handler of /link: one peer, from its Hello until it goes."""
        socket = web.WebSocketResponse(max_msg_size=MAX_MESSAGE_BYTES, compress=False)
        try:
            await socket.prepare(request)
        except ConnectionError:  # it waited in the backlog while no controller was there, and gave up
            return socket
        peer = await self._greet(socket)
        if peer is None:
            return socket
        sender = asyncio.create_task(peer.drain())
        try:
            self._admit(peer)
            await self._receive(peer)
        finally:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
            if self._connected.get(peer.name) is peer:
                del self._connected[peer.name]
                self._on_gone(peer)
        return socket

    def _admit(self, peer: Peer) -> None:
        earlier = self._connected.pop(peer.name, None)
        if earlier is not None:  # the newer connection is the one whose other end still lives
            self.refused["replaced-link"] += 1
            earlier.send(Reject(why="the same peer connected again"))
        self._connected[peer.name] = peer
        peer.send(
            Welcome(protocol=PROTOCOL, spec=self._spec, last_source_seq=self._last_seq(peer.name)),
        )
        self._on_connected(peer)

    async def _greet(self, socket: web.WebSocketResponse) -> Peer | None:
        """The peer, or None after telling it why not."""
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                message = await socket.receive()
            if message.type is not WSMsgType.BINARY:
                raise WireError("the first message must be Hello, in binary")
            hello = decode_from_peer(message.data)
            if not isinstance(hello, Hello):
                raise WireError(f"the first message must be Hello, not {type(hello).__name__}")
        except (WireError, TimeoutError) as error:
            await self._turn_away(socket, "garbage", str(error) or "no Hello in time")
            return None
        except asyncio.CancelledError:
            raise
        why = self._objection(hello)
        if why is not None:
            await self._turn_away(socket, *why)
            return None
        return Peer(hello.name, hello.role, socket)

    def _objection(self, hello: Hello) -> tuple[str, str] | None:
        """Kind and sentence of what speaks against this peer."""
        if hello.protocol != PROTOCOL:
            return "protocol", (
                f"{hello.name} speaks protocol {hello.protocol} (everstep {hello.everstep_version}), this controller "
                f"{PROTOCOL} (everstep {__version__}): install the same everstep on both sides"
            )
        if hello.run != self._run:
            return "wrong-run", f"{hello.name} belongs to run {hello.run!r}, this is the controller of {self._run!r}"
        if hello.role not in ("agent", "launcher") or not hello.name:
            return "garbage", f"role {hello.role!r} with name {hello.name!r}: must be agent or launcher, with a name"
        return None

    async def _turn_away(self, socket: web.WebSocketResponse, kind: str, why: str) -> None:
        self.refused[kind] += 1
        log.warning("peer turned away: %s", why)
        with contextlib.suppress(ConnectionError):
            await socket.send_bytes(encode(Reject(why=why)))
        await socket.close()

    async def _receive(self, peer: Peer) -> None:
        async for message in peer.socket:
            if self._connected.get(peer.name) is not peer:
                return
            if message.type is WSMsgType.ERROR:
                self._note_broken(peer, message.data)
                return
            try:
                if message.type is not WSMsgType.BINARY:
                    raise WireError("a text frame")
                report = decode_from_peer(message.data)
                if not isinstance(report, Report) or report.source_seq < 1:
                    raise WireError(f"{type(report).__name__} where a numbered Report is expected")
            except WireError as error:
                self.refused["garbage"] += 1
                log.warning("%s sent what is no report, ignored: %s", peer.name, error)
                continue
            # A full queue makes this wait, and so the peer: it keeps its reports until they are acknowledged.
            await self._queue.put(Input(event=report.event, source=peer.name, seq=report.source_seq))

    def _note_broken(self, peer: Peer, error: object) -> None:
        """aiohttp has closed the connection already."""
        is_oversized = getattr(error, "code", None) == WSCloseCode.MESSAGE_TOO_BIG
        self.refused["oversized" if is_oversized else "garbage"] += 1
        log.warning("the link of %s was closed: %s", peer.name, error)
