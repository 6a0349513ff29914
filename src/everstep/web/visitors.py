"""Connections to `everstep ui`: which keep a place, and for how long without a request. Any user of the machine
connects.

Shared out as at the controller's port (`wire.strangers.guests`): a crowd of another user keeps out that user. Invalid
requests are not written to the terminal of the user who started it.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator

from aiohttp import web

from everstep.wire.strangers.guests import Guests
from everstep.wire.strangers.owner import Owners

MAX_CONNECTIONS = 256
IDLE_S = 15.0
"""A connection that has not asked for something whole by then, or asks for nothing more, is closed."""


class Visitors:
    """Makes a protocol for each connection. `make_http`: aiohttp's, which answers."""

    def __init__(self, *, most: int = MAX_CONNECTIONS, idle_s: float = IDLE_S) -> None:
        self.guests = Guests(most, frozenset({os.geteuid(), 0}))
        self.owners = Owners()
        self.idle_s = idle_s
        self.make_http: Callable[[], asyncio.Protocol] | None = None
        self._of: dict[asyncio.BaseTransport, Visitor] = {}

    def __call__(self) -> asyncio.Protocol:
        return Visitor(self, self._of)

    @contextlib.contextmanager
    def answering(self, request: web.Request) -> Iterator[None]:
        """This request is being answered: its connection keeps its place, however long that takes."""
        visitor = self._of.get(request.transport) if request.transport is not None else None
        if visitor is None:
            yield
            return
        visitor.begin()
        try:
            yield
        finally:
            visitor.end()


class Visitor(asyncio.Protocol):
    """One connection: passed on to aiohttp as it comes."""

    def __init__(self, visitors: Visitors, of: dict[asyncio.BaseTransport, "Visitor"]) -> None:
        assert visitors.make_http is not None
        self._visitors, self._of = visitors, of
        self._http = visitors.make_http()
        self._timer: asyncio.TimerHandle | None = None
        self._is_in = False
        self.is_busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        user = self._visitors.owners.who(transport.get_extra_info("peername"), transport.get_extra_info("sockname"))
        if not self._visitors.guests.admit(self, user):
            transport.abort()
            return
        self._is_in = True
        self._of[transport] = self
        self._http.connection_made(transport)
        self._wait()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_waiting()
        self._visitors.guests.leave(self)
        self._of.pop(self._transport, None)
        if self._is_in:
            self._http.connection_lost(error)

    def data_received(self, data: bytes) -> None:
        self._http.data_received(data)

    def eof_received(self) -> bool | None:
        return self._http.eof_received()

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    def abort(self) -> None:
        """Its place is another's."""
        self._transport.abort()

    def begin(self) -> None:
        self.is_busy = True
        self._visitors.guests.touch(self)
        self._stop_waiting()

    def end(self) -> None:
        self.is_busy = False
        self._wait()

    def _wait(self) -> None:
        self._stop_waiting()
        if not self._transport.is_closing():
            self._timer = asyncio.get_running_loop().call_later(self._visitors.idle_s, self._transport.abort)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
