"""Signals that an agent takes until its process has ended.

The agent ends by itself when the run is over, and its launcher asks it to end at the same moment. A handler of the
event loop goes with the loop: a signal that came after it would kill the process, and an orderly end would look like a
lost node. Called by `agent.main`.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from types import FrameType


def handle(loop: asyncio.AbstractEventLoop, number: int, act: Callable[[], object]) -> None:
    """Let the loop call `act` when the signal `number` comes; nothing is done when the loop is closed."""

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: this process ends anyway
            loop.call_soon_threadsafe(act)

    signal.signal(number, on_signal)
