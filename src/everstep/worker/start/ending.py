"""The program's last line is over: said on the board before threads are joined and exit handlers run.

A program that runs natively has no frame of ours below it that would know. The interpreter calls what `threading` keeps
for its own users first of all; that list is private, so without it the end is only seen by the agent.
"""

import os
import threading
import time

from everstep.worker.link.runtime import current


def install() -> None:
    """Once per process, and for what goes on from its twins."""
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(_end)


def _end() -> None:
    runtime = current()
    if runtime is not None and runtime.process is not None and runtime.process.pid == os.getpid():
        runtime.board.set_over(time.time())
        runtime.process.frozen.release()
