"""A peer's link to the controller: reports that are not lost, commands, and a connection that comes back.

A report stays in the outbox until it is acknowledged, and is sent again after a reconnect unless the controller says
that it has it. There is no end to the attempts: training continues while the controller is away. Used by the agent and
by the launcher; it decides nothing.
"""

import asyncio
import collections
import errno
import logging
import time
from collections.abc import Callable

import aiohttp

from everstep.errors import WireError
from everstep.model.events import Event, RuntimeFaulted
from everstep.model.spec import RunSpec
from everstep.wire.codec import MAX_FROM_PEER_BYTES, encode
from everstep.wire.contact import Contact
from everstep.wire.credentials import Credentials
from everstep.wire.greeting import RejectedError, Socket, connect, introduce, receive
from everstep.wire.messages import Ack, Beat, Command, FromController, Report, Welcome

BACKOFF_MIN_S = 0.02
BACKOFF_MAX_S = 1.0
_HANDSHAKE_TIMEOUT_S = 30.0
_MAX_OUTBOX = 100_000
"""Reports while the controller is away. Periodic ones are not made then, so only a fault of ours gets here."""

_FLOWING = 64
"""Unacknowledged reports with which a link still flows. With more, the controller is behind (its disk is full, say):
what it does not read must not fill the connection, whose acknowledgements are what an agent's lease lives on."""

_log = logging.getLogger(__name__)


class Link:
    """Call `run` once, as a task; `report` at any time."""

    def __init__(
        self,
        *,
        url: str,
        credentials: Credentials,
        on_command: Callable[[Command], None],
        on_welcome: Callable[[RunSpec], None] = lambda spec: None,
    ) -> None:
        self._url = url
        self._credentials = credentials
        self._on_welcome = on_welcome
        self._on_command = on_command
        self._outbox: collections.deque[Report] = collections.deque()
        self._next_seq = 1
        self._socket: Socket | None = None
        self._wake = asyncio.Event()
        self._has_place = asyncio.Event()
        self._has_place.set()
        self._num_sent = 0  # of the outbox, on this connection
        self._backoff_s = BACKOFF_MIN_S
        self.was_welcome = False
        self._contact = Contact()
        self._is_beat_due = False
        self._said_at = time.monotonic()  # the last message was sent

    def report(self, event: Event) -> None:
        """Put a report into the outbox; it is sent in the order of calls."""
        self._outbox.append(Report(source_seq=self._next_seq, event=event))
        self._next_seq += 1
        if len(self._outbox) > _MAX_OUTBOX:
            self._outbox.popleft()
            self._num_sent = max(0, self._num_sent - 1)
        self._wake.set()

    @property
    def is_flowing(self) -> bool:
        """Whether it is connected and its reports are acknowledged. If not, what will be stale need not be reported."""
        return self._socket is not None and len(self._outbox) < _FLOWING

    def beat(self, beat_s: float) -> None:
        """Say something, if nothing was said for so long."""
        if self._socket is not None and time.monotonic() - self._said_at >= beat_s:
            self._is_beat_due = True
            self._wake.set()

    def heard_at(self) -> float | None:
        """When something was said, monotonic, that has arrived where the controller is; None: that is not known now.
        While the controller is away and its machine answers, that is now: the next one hears of us when it begins."""
        if self._socket is None:
            return time.monotonic() if self._contact.is_fresh() else None
        return None if self._contact.acknowledged_at() is None else self._said_at

    @property
    def num_unacknowledged(self) -> int:
        return len(self._outbox)

    def leave(self, url: str = "") -> None:
        """Nothing more is taken from the controller there; there is one at `url`, if that is known."""
        if url == self._url:
            return
        self._url, self._backoff_s = url, BACKOFF_MIN_S
        self._has_place.set() if url else self._has_place.clear()
        self._contact.close()

    async def run(self) -> None:
        """Be connected, for ever. Raises RejectedError."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
        connector = aiohttp.TCPConnector(socket_factory=self._contact.make_socket)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            while True:
                try:
                    await self._has_place.wait()
                    await self._converse(session)
                except RejectedError:
                    raise
                except (aiohttp.ClientError, OSError, WireError, TimeoutError) as error:
                    if isinstance(error, OSError) and error.errno == errno.ECONNREFUSED:
                        self._contact.note_refusal()
                    _log.info("link to the controller: %s: %s", type(error).__name__, error)
                self._socket = None
                await asyncio.sleep(self._backoff_s)
                self._backoff_s = min(self._backoff_s * 2, BACKOFF_MAX_S)

    async def drain(self, timeout_s: float) -> None:
        """Wait until everything is acknowledged, but not for long."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._outbox and self._socket is not None and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)

    async def _converse(self, session: aiohttp.ClientSession) -> None:
        async with connect(session, self._url, self._credentials) as socket:
            async with asyncio.timeout(_HANDSHAKE_TIMEOUT_S):
                welcome = await introduce(socket, self._credentials)
            self._start_over(welcome)
            self._socket, self._backoff_s, self.was_welcome = socket, BACKOFF_MIN_S, True
            sender = asyncio.create_task(self._send_all(socket))
            try:
                url = self._url
                while self._url == url:
                    message = await receive(socket)
                    if self._url == url:  # else this controller's word does not count any more
                        self._take(message)
            finally:
                self._socket = None
                sender.cancel()
                await asyncio.gather(sender, return_exceptions=True)

    def _start_over(self, welcome: Welcome) -> None:
        """Drop what the controller has; the rest is sent again."""
        self._forget(welcome.last_source_seq)
        # A controller that knows more of us than we do: an earlier life under this name. Never reuse its numbers.
        if welcome.last_source_seq >= self._next_seq:
            shift = welcome.last_source_seq + 1 - (self._outbox[0].source_seq if self._outbox else self._next_seq)
            self._outbox = collections.deque(
                Report(source_seq=r.source_seq + shift, event=r.event) for r in self._outbox
            )
            self._next_seq += shift
        self._num_sent = 0
        self._on_welcome(welcome.spec)
        self._wake.set()

    def _take(self, message: FromController) -> None:
        if isinstance(message, Ack):
            self._forget(message.source_seq)
        elif isinstance(message, Command):
            self._on_command(message)

    def _forget(self, source_seq: int) -> None:
        while self._outbox and self._outbox[0].source_seq <= source_seq:
            self._outbox.popleft()
            self._num_sent = max(0, self._num_sent - 1)

    async def _send_all(self, socket: Socket) -> None:
        try:
            while True:
                self._wake.clear()
                while self._num_sent < len(self._outbox):
                    report = self._outbox[self._num_sent]
                    self._num_sent += 1
                    await self._say(socket, self._encoded(report))
                if self._is_beat_due:
                    await self._say(socket, encode(Beat()))
                await self._wake.wait()
        except (aiohttp.ClientError, OSError) as error:
            _log.info("sending to the controller: %s", error)
            await socket.close()

    async def _say(self, socket: Socket, data: bytes) -> None:
        self._said_at, self._is_beat_due = time.monotonic(), False  # it counts as said before it was, never after
        await socket.send_bytes(data)

    def _encoded(self, report: Report) -> bytes:
        """Encode the report. One that the controller would refuse for its length is replaced by a RuntimeFaulted: sent
        again and again, it would keep everything after it from getting through."""
        data = encode(report)
        if len(data) <= MAX_FROM_PEER_BYTES:
            return data
        kind, event = type(report.event).__name__, report.event
        why = f"{kind} of {len(data)} bytes was left out: a report has at most {MAX_FROM_PEER_BYTES}"
        _log.error("%s", why)
        generation = int(getattr(event, "generation", -1))
        node = self._credentials.name
        told = RuntimeFaulted(at=time.time(), node=node, rank=-1, generation=generation, where="link", why=why)
        return encode(Report(source_seq=report.source_seq, event=told))
