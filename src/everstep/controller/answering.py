"""Sends an answer of the HTTP API, and waits until it is gone: a client that does not read keeps nothing in memory.

Called by `api` for every request.
"""

import asyncio

from aiohttp import web

UNREAD_S = 10.0
"""In which the client must have taken all but what the kernel keeps for it. Shorter: a slow line loses its answer."""

_LOOK_S = 0.02


async def send(request: web.Request, response: web.StreamResponse) -> bool:
    """False: the client did not read, and its connection is cut."""
    transport = request.transport
    try:
        async with asyncio.timeout(UNREAD_S):
            await response.prepare(request)
            await response.write_eof()
            while transport is not None and transport.get_write_buffer_size() and not transport.is_closing():
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        if transport is not None:
            transport.abort()
        return False
    return True
