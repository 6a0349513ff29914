"""Calls that a stranger can keep waiting: each has a thread of its own.

asyncio's own threads are few and shared, and its end waits for all of them: a mail server or a name server that answers
without an end would take the place of the other receivers, and keep the process after the run.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from aiohttp.abc import AbstractResolver, ResolveResult

T = TypeVar("T")


async def on_own_thread(limit_s: float, call: Callable[[], T]) -> T:
    """Run `call` in a thread. Raises TimeoutError, and what `call` raises. A late thread is left alone, and not waited
    for."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[T] = loop.create_future()

    def work() -> None:
        found: list[T] = []
        raised: BaseException | None = None
        try:
            found.append(call())
        except BaseException as error:
            raised = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is no waiter any more
            loop.call_soon_threadsafe(_settle, ended, found, raised)

    threading.Thread(target=work, name="everstep-notice", daemon=True).start()
    async with asyncio.timeout(limit_s):
        return await ended


def _settle(ended: "asyncio.Future[T]", found: list[T], raised: BaseException | None) -> None:
    if ended.done():
        return
    if raised is not None:
        ended.set_exception(raised)
    else:
        ended.set_result(found[0])


class Resolver(AbstractResolver):
    """Names to addresses, within `limit_s`."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await on_own_thread(
            self._limit_s, lambda: socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
        )
        return [_result(host, *each) for each in found]

    async def close(self) -> None:
        """Nothing is kept."""


def _result(host: str, family: int, _kind: int, proto: int, _name: str, address: Any) -> ResolveResult:  # noqa: ANN401 - a socket's address
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return ResolveResult(hostname=host, host=address[0], port=address[1], family=family, proto=proto, flags=flags)
