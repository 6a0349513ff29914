"""Faults on request inside a worker: exit, raise, run out of memory, hang in Python or in native code.

The agent puts the request on the link and rings with a signal; the handler runs on the main thread between two
instructions of the user's program, so "raise" is an exception at whatever line happens to run. A rank that sits in
native code hears it when it comes back to Python.
"""

import ctypes
import os
import signal
import sys
import threading
from types import FrameType

from everstep.worker.runtime import DRILL_SIGNAL, Runtime, current

EXIT_CODE = 42
_CHUNK_BYTES = 32 << 20
_HANGS = ("python-loop", "native-call")
_TRY_AGAIN_S = 0.003
_MAX_TRIES = 1000
"""Three seconds: a program that never leaves torch for so long hangs inside of it."""

_FOR_EVER_S = 1_000_000


class DrillError(Exception):
    """Raised in the user's program because somebody asked for it: `everstep drill raise`."""


def install() -> None:
    signal.signal(DRILL_SIGNAL, _on_signal)


def _on_signal(_signum: int, frame: FrameType | None) -> None:
    runtime = current()
    request = None
    try:
        request = runtime.take_drill() if runtime is not None else None
    except Exception as error:
        if runtime is not None:
            runtime.report_fault("drill", f"{type(error).__name__}: {error}")
    if runtime is None or request is None:
        return
    if request.get("kind") in _HANGS and _is_in_torch(frame) and request.get("tries", 0) < _MAX_TRIES:
        runtime.put_back({**request, "tries": request.get("tries", 0) + 1})
        threading.Timer(_TRY_AGAIN_S, os.kill, (os.getpid(), DRILL_SIGNAL)).start()
        return
    _do(runtime, str(request.get("kind")))


def _is_in_torch(frame: FrameType | None) -> bool:
    """Whether torch was interrupted, and not the user's own code: a loop inside of a collective is no user's loop."""
    return frame is not None and "/torch/" in frame.f_code.co_filename


def _do(runtime: Runtime, kind: str) -> None:
    if kind == "exit":
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_CODE)
    elif kind == "raise":
        raise DrillError(f"raised in rank {runtime.rank} by a drill")
    elif kind == "oom":
        _eat_memory()
    elif kind == "python-loop":
        _loop()
    elif kind == "native-call":
        ctypes.PyDLL(None).sleep(_FOR_EVER_S)  # PyDLL, unlike CDLL, keeps the interpreter lock
    else:
        runtime.report_fault("drill", f"unknown kind {kind!r}")


def _loop() -> None:
    """A loop that never ends, in Python: the processor is busy and nothing moves."""
    count = 0
    while True:
        count += 1


def _eat_memory() -> None:
    """Touch memory until the kernel ends the process. The agent has put it into a limited cgroup before."""
    eaten = []
    while True:
        eaten.append(bytearray(b"\1") * _CHUNK_BYTES)
