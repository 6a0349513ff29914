"""A peer's link to the controller: reports that are not lost, commands, and a connection that comes back.

A report stays in the outbox until it is acknowledged, and is sent again after a reconnect unless the controller says
that it has it. There is no end to the attempts: training goes on while the controller is away. Used by the agent and
by the launcher; it decides nothing.
"""

import asyncio
import collections
import logging
from collections.abc import Callable
from pathlib import Path

import aiohttp

from everstep.errors import WireError
from everstep.model.events import Event
from everstep.model.spec import RunSpec
from everstep.version import __version__
from everstep.wire.codec import MAX_MESSAGE_BYTES, decode_from_controller, encode
from everstep.wire.messages import PROTOCOL, Ack, Command, Hello, Reject, Report, Welcome

BACKOFF_MIN_S = 0.02
BACKOFF_MAX_S = 1.0
_HEARTBEAT_S = 5.0
"""WebSocket pings: a controller whose machine vanished is noticed within two of them."""
_HANDSHAKE_TIMEOUT_S = 30.0
_MAX_OUTBOX = 100_000
"""Reports while the controller is away. Periodic ones are not made then, so only a fault of ours gets here."""

_log = logging.getLogger(__name__)


class RejectedError(WireError):
    """The controller does not want this peer: another version, or another run. Trying again would not help."""


class Link:
    """Call `run` once, as a task; `report` at any time."""

    def __init__(
        self,
        *,
        url: str,
        token: Path,
        run: str,
        role: str,
        name: str,
        on_command: Callable[[Command], None],
        on_welcome: Callable[[RunSpec], None] = lambda spec: None,
    ) -> None:
        self._url = url
        self._token = token
        self._hello = Hello(protocol=PROTOCOL, everstep_version=__version__, run=run, role=role, name=name)
        self._on_welcome = on_welcome
        self._on_command = on_command
        self._outbox: collections.deque[Report] = collections.deque()
        self._next_seq = 1
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._wake = asyncio.Event()
        self._num_sent = 0  # of the outbox, on this connection
        self._backoff_s = BACKOFF_MIN_S
        self.was_welcome = False

    def report(self, event: Event) -> None:
        """Put a report into the outbox; it is sent in the order of calls."""
        self._outbox.append(Report(source_seq=self._next_seq, event=event))
        self._next_seq += 1
        if len(self._outbox) > _MAX_OUTBOX:
            self._outbox.popleft()
            self._num_sent = max(0, self._num_sent - 1)
        self._wake.set()

    @property
    def is_connected(self) -> bool:
        return self._socket is not None

    @property
    def num_unacknowledged(self) -> int:
        return len(self._outbox)

    async def run(self) -> None:
        """Be connected, for ever. Raises RejectedError."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                try:
                    await self._converse(session)
                except RejectedError:
                    raise
                except (aiohttp.ClientError, OSError, WireError, TimeoutError) as error:
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
        headers = {"Authorization": f"Bearer {self._token.read_text().strip()}"}
        async with session.ws_connect(
            self._url, headers=headers, heartbeat=_HEARTBEAT_S, max_msg_size=MAX_MESSAGE_BYTES
        ) as socket:
            await socket.send_bytes(encode(self._hello))
            async with asyncio.timeout(_HANDSHAKE_TIMEOUT_S):
                welcome = await self._receive(socket)
            if not isinstance(welcome, Welcome):
                raise WireError(f"expected Welcome, got {type(welcome).__name__}")
            self._start_over(welcome)
            self._socket, self._backoff_s, self.was_welcome = socket, BACKOFF_MIN_S, True
            sender = asyncio.create_task(self._send_all(socket))
            try:
                while True:
                    self._take(await self._receive(socket))
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

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse) -> Welcome | Ack | Command:
        message = await socket.receive()
        if message.type is not aiohttp.WSMsgType.BINARY:
            raise WireError(f"connection ended: {message.type.name} {socket.close_code or ''}")
        decoded = decode_from_controller(message.data)
        if isinstance(decoded, Reject):
            raise RejectedError(decoded.why)
        return decoded

    def _take(self, message: Welcome | Ack | Command) -> None:
        if isinstance(message, Ack):
            self._forget(message.source_seq)
        elif isinstance(message, Command):
            self._on_command(message)

    def _forget(self, source_seq: int) -> None:
        while self._outbox and self._outbox[0].source_seq <= source_seq:
            self._outbox.popleft()
            self._num_sent = max(0, self._num_sent - 1)

    async def _send_all(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        try:
            while True:
                self._wake.clear()
                while self._num_sent < len(self._outbox):
                    report = self._outbox[self._num_sent]
                    self._num_sent += 1
                    await socket.send_bytes(encode(report))
                await self._wake.wait()
        except (aiohttp.ClientError, OSError) as error:
            _log.info("sending to the controller: %s", error)
            await socket.close()
