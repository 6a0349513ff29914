"""Calls that may never return, for the event loop: the caller can be cancelled, and the process can end.

The loop's own executor is not for such calls: an agent that ends waits for it. Used by `inspecting` and `agent.main`.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

from everstep.probes.node.bounded import Call

T = TypeVar("T")


async def aside(call: Callable[[], T], name: str) -> T:
    """Run a call in a thread of its own; raises what the call raises. A call that hangs keeps its thread, and the next
    one gets another."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(done.set)

    made = Call(call, name, tell)
    await done.wait()
    return made.result()
