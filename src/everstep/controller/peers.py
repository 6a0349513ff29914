"""The peers' end of the link: agents and the launcher connect, introduce themselves, report, and get commands.

It turns frames into `Input`s on the controller's queue and counts whatever is not one; it decides nothing and never
raises for what a peer sends. A peer that cannot be understood is told so in one sentence and let go.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web

from everstep.controller.budget import GREETING_UNITS, UNIT_BYTES, Budget
from everstep.controller.gate import Gate, TurnedAwayError
from everstep.errors import WireError
from everstep.model.actions import Action
from everstep.model.events import Event
from everstep.model.spec import RunSpec
from everstep.wire import allowed, clocks
from everstep.wire.codec import MAX_FROM_PEER_BYTES, decode_from_peer, encode
from everstep.wire.credentials import Credentials
from everstep.wire.messages import PROTOCOL, Ack, Beat, Command, FromController, Hello, Reject, Report, Welcome

MAX_SEQ = 1 << 62
"""A number that is none would make everything after it a duplicate."""

MAX_UNREAD = 10_000
"""Messages that wait for one peer."""

NO_KNOCK = (
    "needs the run's credentials of a peer: this is another run's, or another version of everstep; install the same "
    "everstep on both sides"
)

log = logging.getLogger("everstep.controller")


@dataclass(frozen=True, kw_only=True)
class Input:
    """One thing to handle, in order of arrival."""

    event: Event
    source: str = ""  # peer that reported it; empty: the controller's own
    seq: int = 0
    arrived: float = 0.0  # monotonic; 0: it did not come from a peer
    settled: Callable[[bool], None] | None = None  # told whether it went on record (HTTP requests wait for it)

    @property
    def key(self) -> str:
        """Recognises the same input after a crash."""
        return f"{self.source}:{self.seq}" if self.source else f"own:{self.event!r}"


class Peer:
    """One connection. Sending never blocks: a peer that does not read must not hold up the decisions for others."""

    def __init__(self, name: str, role: str, socket: web.WebSocketResponse, cut: Callable[[], None]) -> None:
        self.name = name
        self.role = role
        self.socket = socket
        self.ahead_s = 0.0  # its clock, of ours
        self._cut = cut
        self._outbox: asyncio.Queue[FromController] = asyncio.Queue(MAX_UNREAD)

    def send(self, message: FromController) -> None:
        """One that does not read is cut off; when it comes back, what it was told is told again."""
        try:
            self._outbox.put_nowait(message)
        except asyncio.QueueFull:
            self._cut()

    async def drain(self) -> None:
        """Sends what `send` queued, until cancelled or the connection is gone."""
        with contextlib.suppress(ConnectionError):
            while True:
                await self.socket.send_bytes(encode(await self._outbox.get()))


class Peers:
    def __init__(
        self,
        *,
        spec: RunSpec,
        gate: Gate,
        put: "asyncio.Queue[Input]",
        last_seq: Callable[[str], int],
        on_connected: Callable[[Peer], None],
        on_heard: Callable[[str], None],
    ) -> None:
        self._spec = spec
        self._queue = put
        self._last_seq = last_seq
        self._on_connected = on_connected
        self._on_heard = on_heard
        self._connected: dict[str, Peer] = {}
        self._gate = gate
        self._rejections = gate.rejections
        self._budgets: dict[str, Budget] = {}  # as many as there are peers with a key

    def get(self, name: str) -> Peer | None:
        return self._connected.get(name)

    def __len__(self) -> int:
        return len(self._connected)

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

    def turn_out(self, name: str, why: str) -> None:
        """It does not belong to the run any more: told so, it ends itself."""
        peer = self._connected.get(name)
        if peer is not None:
            peer.send(Reject(why=why))

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """The handler of /link: one peer, from its knock until it goes."""
        known = self._gate.knocked(request)
        if known is None:
            await self._gate.note_stranger(
                f"{request.remote} knocked with {request.headers.get('Authorization')!r:.60}"
            )
            return web.json_response({"error": NO_KNOCK}, status=401)
        socket = web.WebSocketResponse(max_msg_size=MAX_FROM_PEER_BYTES, compress=False)
        try:
            await socket.prepare(request)
        except ConnectionError:  # it waited in the backlog while no controller was there, and gave up
            return socket
        await self._slow_down(known.name, GREETING_UNITS)
        hello = await self._greet(socket, known)
        if hello is None:
            return socket
        transport = request.transport
        assert transport is not None  # Hello came over it
        peer = Peer(known.name, known.role, socket, transport.abort)
        peer.ahead_s = clocks.ahead_s(hello.clock, time.time())
        if peer.ahead_s:
            log.warning(
                "the clock of %s is %+.1f s ahead of ours, what it tells is moved by that", peer.name, peer.ahead_s
            )
        sender = asyncio.create_task(peer.drain())
        try:
            self._admit(peer, known.proof("welcome", hello.challenge, hello.nonce))
            await self._receive(peer)
        finally:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
            if self._connected.get(peer.name) is peer:
                del self._connected[peer.name]
        return socket

    def _admit(self, peer: Peer, proof: str) -> None:
        earlier = self._connected.pop(peer.name, None)
        if earlier is not None:  # the newer connection is the one whose other end still lives
            self._rejections.note("replaced-link", f"{peer.name} connected again")
            earlier.send(Reject(why="the same peer connected again"))
        self._connected[peer.name] = peer
        last_seq = self._last_seq(peer.name)
        peer.send(Welcome(protocol=PROTOCOL, spec=self._spec, last_source_seq=last_seq, proof=proof))
        self._on_connected(peer)
        self._on_heard(peer.name)

    async def _greet(self, socket: web.WebSocketResponse, known: Credentials) -> Hello | None:
        """Its Hello, or None after telling it why not."""
        try:
            return await self._gate.greet(socket, known)
        except TurnedAwayError as error:
            self._rejections.note(error.kind, str(error))
            with contextlib.suppress(ConnectionError):
                await socket.send_bytes(encode(Reject(why=str(error))))
            await socket.close()
        except ConnectionError:
            self._rejections.note("silence", f"{known.name} left before it said who it is")
        return None

    async def _receive(self, peer: Peer) -> None:
        async for message in peer.socket:
            if self._connected.get(peer.name) is not peer:
                return
            if message.type is WSMsgType.ERROR:
                self._note_broken(peer, message.data)
                return
            self._on_heard(peer.name)
            await self._slow_down(peer.name, 1 + len(message.data) / UNIT_BYTES)
            report = self._believed(peer, message)
            if report is not None:
                item = Input(
                    event=clocks.moved(report.event, -peer.ahead_s),
                    source=peer.name,
                    seq=report.source_seq,
                    arrived=time.monotonic(),
                )
                # A full queue makes this wait, and so the peer: it keeps its reports until they are acknowledged.
                await self._queue.put(item)

    async def _slow_down(self, name: str, units: float) -> None:
        """One that says more than it may is read more slowly, and slows down nobody else."""
        now = time.monotonic()
        budget = self._budgets.get(name)
        if budget is None:
            budget = self._budgets[name] = Budget(now)
        wait_s = budget.spend(units, now)
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    def _believed(self, peer: Peer, message: WSMessage) -> Report | None:
        """None, counted, for whatever is no report that this peer may make."""
        try:
            if message.type is not WSMsgType.BINARY:
                raise WireError("a text frame")
            report = decode_from_peer(message.data)
            if isinstance(report, Beat):
                return None
            if not isinstance(report, Report) or not 1 <= report.source_seq <= MAX_SEQ:
                raise WireError(f"{type(report).__name__} where a numbered Report is expected")
        except WireError as error:
            self._rejections.note("garbage", f"{peer.name} sent what is no report: {error}")
            return None
        objection = allowed.objection(peer.role, peer.name, report.event)
        if objection:
            self._rejections.note("wrong-role", objection)
            return None
        return report

    def _note_broken(self, peer: Peer, error: object) -> None:
        """aiohttp has closed the connection already."""
        is_oversized = getattr(error, "code", None) == WSCloseCode.MESSAGE_TOO_BIG
        self._rejections.note(
            "oversized" if is_oversized else "garbage", f"the link of {peer.name} was closed: {error}"
        )
