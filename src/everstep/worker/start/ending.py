"""The program's last line is over: said on the board before threads are joined and exit handlers run. After those,
torch's threads may let go of what they did.

A program that runs natively has no frame of ours below it that would know. The interpreter calls what `threading` keeps
for its own users first of all; that list is private, so without it the end is only seen by the agent.
"""

import atexit
import contextlib
import os
import sys
import threading
import time

from everstep.worker.link.runtime import current
from everstep.worker.process import communication


def install() -> None:
    """Install once per process, also for what continues from its twins."""
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(_end)
    let_go_last()


def let_go_last() -> None:
    """After the program's own exit handlers, which come later and so run earlier."""
    atexit.register(_let_go)


def _end() -> None:
    runtime = current()
    if runtime is not None and runtime.process is not None and runtime.process.pid == os.getpid():
        # Where the interpreter has printed an exception, it keeps its type there. Of `sys.exit(3)` nothing is left.
        runtime.board.set_over(time.time(), finished=not hasattr(sys, "last_type"))
        runtime.process.frozen.release()


def _let_go() -> None:
    if current() is not None:  # not a child that the program forked
        with contextlib.suppress(Exception):  # no more than a kindness to torch
            communication.let_go()
