"""A connection before its purpose is known: a peer's link, or a request for the HTTP API.

A link is requested by `GET /link` and a knock (`wire/credentials.py`); without it there is no WebSocket, and it costs
next to nothing. Every other head of a request is handed to aiohttp, whole, and what follows it once the answer has
begun: of a stranger, nothing is kept behind what is refused. What has not become either within seconds is closed. Where
the port is encrypted, a connection has waited before (`accepting`), and its door takes its place over.
"""

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from everstep.controller.peers.connection import Connection
from everstep.controller.peers.gate import Gate
from everstep.controller.peers.head import Head, NoRequestError
from everstep.controller.peers.peers import Peers
from everstep.errors import WireError
from everstep.wire import websocket
from everstep.wire.strangers.guests import Guest, Guests
from everstep.wire.strangers.owner import Owners

NO_KNOCK = (
    "needs the run's credentials of a peer: this is another run's, or another version of everstep; install the same "
    "everstep on both sides"
)

_LINKS = (b"GET /link ", b"GET /link?")
_END = b"\r\n\r\n"

_buffer = memoryview(bytearray(16 << 10))
"""Shared by all doors: what arrived is taken out of it before anything else can arrive. asyncio's own pieces have 256
KiB."""


class Doors:
    """Makes a door for each connection to one socket.

    `make_http()`: a protocol for requests that do not open a link. `guests`: the connections that have a place.
    `idle_s`: the time to send a complete request, and again after each answer."""

    def __init__(
        self,
        gate: Gate,
        peers: Peers,
        *,
        make_http: Callable[[], asyncio.Protocol],
        guests: Guests,
        idle_s: float,
    ) -> None:
        self.gate = gate
        self.peers = peers
        self.make_http = make_http
        self.guests = guests
        self.idle_s = idle_s
        self.owners = Owners()
        self._later: set[asyncio.Task[None]] = set()

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    def admit(self, guest: Guest, peer: object, here: object) -> bool:
        """Whether it gets a place; if not, that is counted."""
        if self.guests.admit(guest, self.owners.who(peer, here)):
            return True
        self.gate.rejections.note("crowd", "too many connections are open that belong to no peer")
        return False

    def __call__(self) -> asyncio.BufferedProtocol:
        return Door(self)


class Door(asyncio.BufferedProtocol):
    """One connection before its purpose is known. Whatever is not a link is passed on to aiohttp and stays in view: it
    is counted, and its silence has a limit. `before`: the guest whose place this connection takes over."""

    def __init__(self, doors: Doors, before: Guest | None = None) -> None:
        self._doors = doors
        self._before = before
        self._head = Head()
        self._http: asyncio.Protocol | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._has_place(transport):
            self._wait()
        else:
            transport.abort()

    def _has_place(self, transport: asyncio.Transport) -> bool:
        if self._before is not None:
            before, self._before = self._before, None
            return self._doors.guests.pass_on(before, self)
        return self._doors.admit(self, transport.get_extra_info("peername"), transport.get_extra_info("sockname"))

    def connection_lost(self, error: Exception | None) -> None:
        self._leave()
        if self._http is not None:
            self._doors.gate.answering.pop(self._transport, None)
            self._http.connection_lost(error)

    def abort(self) -> None:
        """Its place is another's."""
        self._doors.gate.rejections.note("crowd", "an idle connection that belongs to no peer made room for another")
        self._transport.abort()

    def begin_answer(self) -> None:
        """A request has come, up to the end of its headers."""
        self.is_busy = True
        self._doors.guests.touch(self)
        self._stop_waiting()
        self._transport.resume_reading()

    def end_answer(self) -> None:
        self.is_busy = False
        self._wait()

    def pause_writing(self) -> None:
        if self._http is not None:
            self._http.pause_writing()

    def resume_writing(self) -> None:
        if self._http is not None:
            self._http.resume_writing()

    def eof_received(self) -> bool | None:
        return None if self._http is None else self._http.eof_received()

    def get_buffer(self, sizehint: int) -> memoryview:
        return _buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(_buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        if self._http is not None:
            self._http.data_received(data)
            return
        try:
            head = self._head.add(data)
        except NoRequestError as error:
            self._doors.gate.rejections.note("garbage", str(error))
            self._refuse(error.status, str(error))
            return
        if head is None:
            return
        if head.startswith(_LINKS):
            request, _, rest = head.partition(_END)
            self._stop_waiting()
            self._open(request, rest)
        else:
            self._ask(head)

    def _ask(self, head: bytes) -> None:
        """aiohttp. Nothing more is read before it has begun to answer: what it refuses, it refuses now."""
        self._http = self._doors.make_http()
        self._doors.gate.answering[self._transport] = self
        self._http.connection_made(self._transport)
        self._transport.pause_reading()
        self._http.data_received(head)

    def _open(self, request: bytes, rest: bytes) -> None:
        """Open the link for a peer that knocks."""
        transport, gate = self._transport, self._doors.gate
        try:
            _, headers = websocket.parse_request(request)
            header = headers.get("authorization", "")
            known = gate.knocked(header, is_encrypted=transport.get_extra_info("sslcontext") is not None)
            if known is None:
                transport.pause_reading()
                self._doors.later(self._refuse_stranger(header))
                return
            answer = websocket.switching(headers)
        except WireError as error:
            self._refuse(400, str(error))
            return
        self.is_busy = True  # until its greeting is over: others are not let in its place
        transport.write(answer)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        Connection(transport, known, gate, self._doors.peers, self._leave).begin(rest)

    async def _refuse_stranger(self, header: str) -> None:
        host = (self._transport.get_extra_info("peername") or ("somebody",))[0]
        await self._doors.gate.note_stranger(f"{host} knocked with {header!r:.60}")
        self._refuse(401, NO_KNOCK)

    def _refuse(self, status: int, why: str) -> None:
        body = json.dumps({"error": why}).encode()
        title = {400: "Bad Request", 401: "Unauthorized", 431: "Request Header Fields Too Large"}[status]
        head = (
            f"HTTP/1.1 {status} {title}\r\nContent-Type: application/json; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        if not self._transport.is_closing():
            self._transport.write(head.encode() + body)
            self._transport.close()

    def _wait(self) -> None:
        self._stop_waiting()
        if not self._transport.is_closing():
            self._timer = asyncio.get_running_loop().call_later(self._doors.idle_s, self._transport.abort)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _leave(self) -> None:
        self._stop_waiting()
        self._doors.guests.leave(self)
