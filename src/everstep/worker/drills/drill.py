"""Faults on request inside a worker: exit, raise, run out of memory, hang in Python or in native code. The silent ones
that need more than a line are in `worker.drills`.

The agent puts the request on the link and rings with a signal; the handler runs on the main thread between two
instructions of the user's program, so "raise" is an exception at whatever line happens to run. A rank that sits in
native code hears it when it comes back to Python.
"""

import _thread
import ctypes
import os
import signal
import sys
import time
from types import FrameType
from typing import Any

from everstep.worker.drills import DrillRefusal, collectives, loader, miscompute, parameters, slow
from everstep.worker.link.runtime import DRILL_SIGNAL, Runtime, current

EXIT_CODE = 42
_CHUNK_BYTES = 32 << 20
_IN_USERS_CODE = ("python-loop", "native-call", "blocked-loader")
_SILENT = {
    "skip-collective": collectives.arm,
    "mismatched-shape": collectives.arm,
    "opposite-order": collectives.arm,
    "blocked-loader": loader.arm,
    "slow": slow.arm,
    "flip-bit": parameters.arm,
    "nan": parameters.arm,
    "miscompute": miscompute.arm,
}
_TRY_AGAIN_S = 0.003
_MAX_TRIES = 1000
"""Three seconds: a program that never leaves torch for so long hangs inside of it."""

_FOR_EVER_S = 1_000_000


class DrillError(Exception):
    """Raised in the user's program on request: `everstep drill raise`."""


def install(runtime: Runtime) -> None:
    """Get ready for requests; faults that the machine has already begin with the program."""
    signal.signal(DRILL_SIGNAL, _on_signal)
    loader.install()
    born_with(runtime)


def born_with(runtime: Runtime) -> None:
    """Carry out the drills that the machine has already."""
    for request in runtime.born_with:
        _do(runtime, str(request.get("kind")), request)


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
    if request.get("kind") in _IN_USERS_CODE and _is_in_torch(frame) and request.get("tries", 0) < _MAX_TRIES:
        runtime.put_back({**request, "tries": request.get("tries", 0) + 1})
        _ring_again(runtime)
        return
    _do(runtime, str(request.get("kind")), request)


def _ring_again(runtime: Runtime) -> None:
    """A bare thread: `threading` has a lock, which the main thread may hold where the signal interrupted it."""
    try:
        _thread.start_new_thread(_ring_later, ())
    except RuntimeError as error:  # no room for it, or the interpreter ends
        runtime.report_fault("drill", f"cannot try again: {error}")


def _ring_later() -> None:
    time.sleep(_TRY_AGAIN_S)
    os.kill(os.getpid(), DRILL_SIGNAL)


def _is_in_torch(frame: FrameType | None) -> bool:
    """Whether torch was interrupted, and not the user's own code: a loop inside of a collective is no user's loop."""
    return frame is not None and "/torch/" in frame.f_code.co_filename


def _do(runtime: Runtime, kind: str, request: dict[str, Any]) -> None:
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
        while True:  # a signal ends the call; PyDLL, unlike CDLL, keeps the GIL
            ctypes.PyDLL(None).sleep(_FOR_EVER_S)
    elif kind in _SILENT:
        _arm(runtime, kind, request)
    else:
        runtime.report_fault("drill", f"unknown kind {kind!r}")


def _arm(runtime: Runtime, kind: str, request: dict[str, Any]) -> None:
    """Answers the agent in any case; nothing of ours is raised into the program."""
    try:
        _SILENT[kind](runtime, request)
    except DrillRefusal as refusal:
        runtime.answer_drill(request, str(refusal))
    except Exception as error:
        why_not = f"our own failure: {type(error).__name__}: {error}"
        runtime.report_fault(f"drill {kind}", why_not)
        runtime.answer_drill(request, why_not)
    else:
        runtime.answer_drill(request, "", is_armed=True)


def _loop() -> None:
    """A loop that never ends, in Python: the CPU is busy and nothing moves."""
    count = 0
    while True:
        count += 1


def _eat_memory() -> None:
    """Touch memory until the kernel ends the process. The agent has put it into a limited cgroup before."""
    eaten = []
    while True:
        eaten.append(bytearray(b"\1") * _CHUNK_BYTES)
