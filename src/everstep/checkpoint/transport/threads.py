"""A blocking transfer in a thread of its own, for an event loop that may change its mind.

The loop's own executor is not for this: it has few threads, and a process that ends waits for all of them.
"""

import asyncio
import concurrent.futures
import contextlib
import errno
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_LET_GO_S = 2.0
"""So long a cancelled transfer is waited for: it was woken up, and has at most one piece to finish."""


async def in_thread(
    work: Callable[[], T],
    abort: Callable[[], None],
    name: str,
    discard: Callable[[T], None] | None = None,
    *,
    release: Callable[[], None],
) -> T:
    """Run `work` in a thread; raises what it raises. When cancelled it calls `abort`, which must make `work` end soon;
    a result that comes all the same goes to `discard`. `release` is called once in any case, when `work` has ended or
    never began; a thread that cannot be started is an OSError."""
    made: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            try:
                result = work()
            finally:
                release()
        except BaseException as error:  # whatever it is belongs to the caller
            made.set_exception(error)
        else:
            made.set_result(result)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        release()
        raise OSError(errno.EAGAIN, f"no thread could be started for it: {error}") from error
    waiter = asyncio.wrap_future(made)
    try:
        return await asyncio.shield(waiter)
    except asyncio.CancelledError:
        if discard is not None:
            made.add_done_callback(lambda done: None if done.exception() else discard(done.result()))
        abort()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({waiter}, timeout=_LET_GO_S)
        waiter.add_done_callback(lambda done: done.cancelled() or done.exception())  # its result is not used any more
        raise


def ask_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], T], limit_s: float) -> T:
    """From a thread: let the event loop do `call` and wait for its result. Raises TimeoutError if the loop is too busy;
    then the call is not made any more."""
    made: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        if not made.set_running_or_notify_cancel():
            return
        try:
            made.set_result(call())
        except Exception as error:  # belongs to the caller
            made.set_exception(error)

    loop.call_soon_threadsafe(run)
    try:
        return made.result(limit_s)
    except TimeoutError:
        if made.cancel():
            raise
        return made.result()
