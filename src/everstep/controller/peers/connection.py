"""One connection to /link: bytes to messages, the greeting, and then a peer that reports until it goes.

A protocol of asyncio's and no task: at 12,500 agents a task and two queues for each message are what a core is busy
with. It knows WebSocket and the greeting; what a peer may say is `peers`' business.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from everstep.controller.peers import gate as gates
from everstep.controller.peers.budget import GREETING_UNITS, UNIT_BYTES
from everstep.controller.peers.gate import Gate, TurnedAwayError, parse_hello
from everstep.controller.peers.peers import Peer, Peers
from everstep.wire import clocks, websocket
from everstep.wire.codec import MAX_FROM_PEER_BYTES, encode
from everstep.wire.credentials import Credentials
from everstep.wire.messages import FromController, Reject
from everstep.wire.websocket import BINARY, CLOSE, PING, PONG, TEXT, BrokenError, Message

MAX_UNREAD_BYTES = 32 << 20
"""That wait for one peer. More than two of the longest messages: it does not read."""

_buffer = memoryview(bytearray(256 << 10))
"""Shared by all connections: what arrived is taken out of it before anything else can arrive."""


class Connection(asyncio.BufferedProtocol):
    """Call `begin` once the request is answered. `on_over()`: it is a peer's from now on, or gone."""

    def __init__(
        self, transport: asyncio.Transport, known: Credentials, gate: Gate, peers: Peers, on_over: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._known = known
        self._gate = gate
        self._peers = peers
        self._on_over = on_over
        self._incoming = websocket.Incoming(MAX_FROM_PEER_BYTES)
        self._unhandled: deque[Message] = deque()  # while nothing more is read
        self._challenge = ""  # while it is to be answered
        self._asked_at = 0.0
        self._timer: asyncio.TimerHandle | None = None  # until it is asked, or read again
        self._deadline: asyncio.TimerHandle | None = None  # of its Hello
        self._peer: Peer | None = None

    def begin(self, data: bytes) -> None:
        """`data`: what came behind the request."""
        self._transport.set_protocol(self)
        self._unhandled.extend(self._cut(data))
        self._transport.pause_reading()  # it has nothing to answer yet
        wait_s = self._peers.spend(self._known.name, GREETING_UNITS)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._ask)

    def send(self, message: FromController) -> None:
        """Send without blocking. A peer that does not read is cut off; when it reconnects, its commands are sent
        again."""
        if self._transport.is_closing():
            return
        self._transport.write(websocket.frame(BINARY, encode(message)))
        if self._transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self._transport.abort()

    def end(self, why: str) -> None:
        """Send the peer the reason as the last message, and close."""
        self.send(Reject(why=why))
        self._close(websocket.NORMAL_CLOSURE)

    def go_on(self) -> None:
        """Read again, after it had to wait."""
        self._timer = None
        while self._unhandled:
            if not self._handle(self._unhandled.popleft()):
                return
        self._transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        return _buffer

    def buffer_updated(self, nbytes: int) -> None:
        found = self._cut(_buffer[:nbytes])
        if self._unhandled:
            self._unhandled.extend(found)
            return
        for number, message in enumerate(found):
            if not self._handle(message):
                self._unhandled.extend(found[number + 1 :])
                return

    def eof_received(self) -> None:
        """The default: it is closed."""

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_timer()
        self._unhandled.clear()
        if self._peer is not None:
            self._peers.leave(self._peer)
            self._peer = None
            return
        if self._challenge:
            self._end_greeting()
            self._gate.rejections.note("silence", f"{self._known.name} left before it identified itself")
        self._on_over()

    def _cut(self, data: bytes | memoryview) -> list[Message]:
        try:
            return self._incoming.feed(data)
        except BrokenError as error:
            kind = "oversized" if error.code == websocket.TOO_BIG else "garbage"
            self._gate.rejections.note(kind, f"the link of {self._known.name} was closed: {error}")
            self._close(error.code)
            return []

    def _handle(self, message: Message) -> bool:
        """Whether the next one may be handled now."""
        opcode, data = message
        if self._transport.is_closing():
            return False
        if opcode == PING:
            self._transport.write(websocket.frame(PONG, data))
        elif opcode == CLOSE:
            self._close(websocket.NORMAL_CLOSURE)
            return False
        elif opcode in (BINARY, TEXT):
            if self._peer is None:
                return self._take_hello(data, is_binary=opcode == BINARY)
            if not self._peers.hear(self._peer, data, is_binary=opcode == BINARY):
                self._transport.pause_reading()  # until there is room
                return False
        wait_s = self._peers.spend(self._known.name, 1 + len(data) / UNIT_BYTES)
        if wait_s <= 0:
            return True
        self._transport.pause_reading()
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(wait_s, self.go_on)
        return False

    def _ask(self) -> None:
        try:
            challenge = self._gate.begin_greeting(self._known)
        except TurnedAwayError as error:
            self._turn_away(error)
            return
        self._challenge, self._asked_at = challenge.challenge, time.time()
        self._deadline = asyncio.get_running_loop().call_later(gates.HELLO_TIMEOUT_S, self._on_silence)
        self.send(challenge)
        self._transport.resume_reading()
        if self._unhandled:
            self._handle(self._unhandled.popleft())  # it cannot know the challenge

    def _on_silence(self) -> None:
        self._end_greeting()
        self._turn_away(TurnedAwayError("silence", f"no Hello within {gates.HELLO_TIMEOUT_S:g} s"))

    def _take_hello(self, data: bytearray, *, is_binary: bool) -> bool:
        challenge = self._challenge
        self._end_greeting()
        try:
            if not challenge:
                raise TurnedAwayError("garbage", "a Hello that was not asked for")
            hello = parse_hello(data, is_binary=is_binary)
            self._gate.check(hello, self._known, challenge)
        except TurnedAwayError as error:
            self._turn_away(error)
            return False
        ahead_s = clocks.ahead_s(hello.clock, self._asked_at, time.time())
        self._peer = Peer(self._known.name, self._known.role, self, ahead_s, self._known.machine)
        self._on_over()
        self._peers.admit(self._peer, self._known.proof("welcome", hello.challenge, hello.nonce))
        return True

    def _end_greeting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._challenge:
            self._challenge = ""
            self._gate.end_greeting(self._known)

    def _turn_away(self, error: TurnedAwayError) -> None:
        self._gate.rejections.note(error.kind, str(error))
        self.end(str(error))

    def _close(self, code: int) -> None:
        self._stop_timer()
        if not self._transport.is_closing():
            self._transport.write(websocket.closing(code))
            self._transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
