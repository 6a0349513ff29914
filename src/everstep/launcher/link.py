"""The launcher's end of the link to the controller: reports go up until acknowledged, commands come down.

It connects again for ever: a controller that died is started again, and this process outlives it. Reports are numbered
once and kept until they are on record. It decides nothing; commands go to the callback given.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable

import aiohttp

from everstep.errors import WireError
from everstep.model.actions import Action
from everstep.model.events import Event
from everstep.version import __version__
from everstep.wire.codec import MAX_MESSAGE_BYTES, decode_from_controller, encode
from everstep.wire.messages import PROTOCOL, Ack, Command, Hello, Reject, Report, Welcome

log = logging.getLogger("everstep.launcher")

HELLO_TIMEOUT_S = 10.0
"""For the answer to Hello; a controller that is killed in between closes the connection, a stopped one does not."""

_BACK_OFF_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class Link:
    def __init__(self, *, url: str, token: str, run: str, name: str, on_command: Callable[[Action], None]) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"}
        self._hello = Hello(protocol=PROTOCOL, everstep_version=__version__, run=run, role="launcher", name=name)
        self._on_command = on_command
        self._unacknowledged: deque[Report] = deque()
        self._next_seq = 1
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._wake = asyncio.Event()
        self.was_welcome = False
        self.rejected = ""  # why the controller does not want this launcher

    @property
    def is_connected(self) -> bool:
        return self._socket is not None

    def report(self, event: Event) -> None:
        self._unacknowledged.append(Report(source_seq=self._next_seq, event=event))
        self._next_seq += 1
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        failures = 0
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
            while True:
                try:
                    await self._connect(session)
                    failures = 0
                except (aiohttp.ClientError, OSError, TimeoutError, WireError) as error:
                    log.debug("no link to the controller: %s", error)
                await asyncio.sleep(_BACK_OFF_S[min(failures, len(_BACK_OFF_S) - 1)])
                failures += 1

    async def _connect(self, session: aiohttp.ClientSession) -> None:
        """One connection's life. Raises when it cannot be made or ends badly."""
        async with session.ws_connect(self._url, headers=self._headers, max_msg_size=MAX_MESSAGE_BYTES) as socket:
            await socket.send_bytes(encode(self._hello))
            answer = decode_from_controller(await _first_message(socket))
            if isinstance(answer, Reject):
                self.rejected = answer.why
                raise WireError(answer.why)
            if not isinstance(answer, Welcome):
                raise WireError(f"{type(answer).__name__} where Welcome is expected")
            self._forget(answer.last_source_seq)
            self.was_welcome = True
            self._socket = socket
            sender = asyncio.create_task(self._send(socket))
            try:
                await self._receive(socket)
            finally:
                self._socket = None
                sender.cancel()
                await asyncio.gather(sender, return_exceptions=True)

    async def _send(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """All reports that this connection has not carried yet, as they come."""
        sent = 0
        with contextlib.suppress(ConnectionError):
            while True:
                self._wake.clear()
                for report in list(self._unacknowledged):
                    if report.source_seq > sent:
                        await socket.send_bytes(encode(report))
                        sent = report.source_seq
                await self._wake.wait()

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY:
                continue
            match decode_from_controller(message.data):
                case Ack(source_seq=seq):
                    self._forget(seq)
                case Command(action=action):
                    self._on_command(action)
                case Reject(why=why):
                    raise WireError(why)
                case Welcome():
                    pass

    def _forget(self, seq: int) -> None:
        while self._unacknowledged and self._unacknowledged[0].source_seq <= seq:
            self._unacknowledged.popleft()


async def _first_message(socket: aiohttp.ClientWebSocketResponse) -> bytes:
    """Raises WireError when the connection ends instead, TimeoutError when nothing comes."""
    message = await socket.receive(timeout=HELLO_TIMEOUT_S)
    if message.type is not aiohttp.WSMsgType.BINARY:
        raise WireError(f"the connection ended before the controller answered: {message.type.name}")
    return bytes(message.data)
