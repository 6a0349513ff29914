"""Pushes changes to open pages, by server-sent events. Looks only while a page listens, once for all of them.

The longer a look takes the longer the feed rests, so ten pages of a fleet of 12,500 machines cost the controller what
one page costs. A client that does not read is dropped; its browser reconnects with the version that it has.
"""

import asyncio
import gzip
import time
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from everstep.web.feed import Feed, Patch, Row
from everstep.web.files import HEADERS

Look = Callable[[], Awaitable[dict[str, Row]]]

EVERY_S = 1.0
REST = 300.0
"""How many times as long as a look took the feed rests: a third of a percent of a CPU."""

MAX_REST_S = 5.0
"""After a look that took long because it asked a whole fleet, which it does seldom (`Overview`)."""

BEAT_S = 15.0
MAX_LISTENERS = 64
MAX_WAITING = 16
"""Messages that one listener has not taken."""

WRITE_S = 10.0


class Live:
    """The live pages of one run. `look` gives all rows of the moment."""

    def __init__(self, look: Look, epoch: str) -> None:
        self._look = look
        self._feed = Feed(epoch)
        self._listeners: dict[asyncio.Queue[bytes | None], None] = {}  # in order of arrival
        self._task: asyncio.Task[None] | None = None
        self._looked_at = float("-inf")
        self._rest_s = 0.0
        self._lock = asyncio.Lock()
        self._whole: tuple[str, bytes, bytes] | None = None  # version, its answer, the same compressed

    async def whole(self) -> tuple[bytes, bytes]:
        """Everything as of now, plain and compressed: what a page begins with."""
        await self.refresh()
        version = self._feed.version
        if self._whole is None or self._whole[0] != version:
            plain = msgspec.json.encode(self._feed.since(""))
            self._whole = version, plain, await asyncio.to_thread(gzip.compress, plain, 5)
        return self._whole[1], self._whole[2]

    async def refresh(self) -> None:
        """Look, unless there was a look just now."""
        async with self._lock:
            if time.monotonic() - self._looked_at < max(EVERY_S, self._rest_s):
                return
            begun = time.thread_time()
            patch = self._feed.update(await self._look())
            self._rest_s = min(MAX_REST_S, REST * (time.thread_time() - begun))
            self._looked_at = time.monotonic()
        if patch is not None:
            message = event_of(patch)
            for listener in list(self._listeners):
                self._tell(listener, message)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """An answer that lasts as long as the page is open."""
        await self.refresh()
        if len(self._listeners) >= MAX_LISTENERS:  # its browser comes back if it is still looked at
            oldest = next(iter(self._listeners))
            del self._listeners[oldest]
            oldest.put_nowait(None)
        listener: asyncio.Queue[bytes | None] = asyncio.Queue()
        version = request.headers.get("Last-Event-ID", request.query.get("since", ""))
        listener.put_nowait(event_of(self._feed.since(version[:64])))
        self._listeners[listener] = None
        if self._task is None:
            self._task = asyncio.create_task(self._watch())
        try:
            return await _send(request, listener)
        finally:
            self._listeners.pop(listener, None)

    def close(self) -> None:
        """Disconnect all pages: their browsers reconnect by themselves, if there is something to connect to."""
        for listener in self._listeners:
            listener.put_nowait(None)

    async def _watch(self) -> None:
        try:
            while self._listeners:
                await asyncio.sleep(max(EVERY_S, self._rest_s))
                await self.refresh()
        finally:
            self._task = None

    def _tell(self, listener: asyncio.Queue[bytes | None], message: bytes) -> None:
        listener.put_nowait(message if listener.qsize() < MAX_WAITING else None)


def event_of(patch: Patch) -> bytes:
    """JSON has no line ends in it, so nothing that a rank wrote can begin a field of its own."""
    return b"id: " + patch.version.encode() + b"\ndata: " + msgspec.json.encode(patch) + b"\n\n"


async def _send(request: web.Request, listener: asyncio.Queue[bytes | None]) -> web.StreamResponse:
    response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    while True:
        try:
            message = await asyncio.wait_for(listener.get(), BEAT_S)
        except TimeoutError:
            message = b": nothing new\n\n"
        if message is None:
            return response
        try:
            async with asyncio.timeout(WRITE_S):
                await response.write(message)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            return response
        except ConnectionError:  # the page was closed
            return response
