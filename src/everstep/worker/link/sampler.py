"""A sampler of this process's threads, seen from inside: for when py-spy is missing, not permitted, or fails.

Answers in the form of `py-spy dump --json`, so that one reader does for both. Called by the watch thread only, when the
agent asks. It needs the GIL: a rank that is stopped, or that holds the GIL in native code, gives no answer here. For
that case `spill` lets a signal write the frames without the GIL. Only the standard library: it is imported in the
user's process.

From inside, a thread that executes Python and one that computes in native code look alike. The GIL tells them apart: a
thread that executes Python releases it only after the switch interval.
"""

import faulthandler
import math
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

from everstep.linux import proc

SPILL_SIGNAL = signal.SIGRTMIN + 9
"""Next to the drill's. The agent sends it only to a process that has a handler for it."""

NAP_S = 0.002
"""Long enough for a thread that waits for the GIL to take it."""

NUM_NAPS = 3
"""The shortest of so many hand-overs counts: other delays of one or two of them never make one shorter."""

STARVED_S = 0.25
"""How long to wait for a thread that wants a CPU and gets none: that it did not come to take the GIL proves nothing
about it."""

BUSY_SHARE = 0.03
BUSY_NS = 500_000
"""Share of the time of the naps, and a minimum. A thread that waits uses some microseconds; one that works gets this
much also on a machine with ten times as much work as CPUs."""

OWNER_NS = 200_000
"""Some thread keeps the GIL: it is the one that used most CPU time, if it used at least this much. Less in a nap: no
thread was there to take the GIL."""

MAX_FRAMES = 400
MAX_THREADS = 256


def threads() -> list[dict[str, Any]]:
    """All threads that run Python, but for the caller's; the main thread last, as py-spy lists it."""
    own = threading.get_ident()
    known = {thread.ident: thread for thread in threading.enumerate()}
    native = {ident: thread.native_id for ident, thread in known.items() if thread.native_id is not None}
    native[threading.main_thread().ident or 0] = os.getpid()  # after a fork, the thread still says its parent's number
    before = {ident: _cpu_ns(task) for ident, task in native.items()}
    elapsed_s, is_contended = _hand_over([task for ident, task in native.items() if ident != own])
    used = {
        ident: now - then
        for ident, task in native.items()
        if ident != own and (now := _cpu_ns(task)) is not None and (then := before[ident]) is not None
    }
    busiest = max(used, key=lambda ident: used[ident], default=None)
    frames = sys._current_frames()
    frames.pop(own, None)  # in a circle with this call, they would keep the program's variables after it
    listed = []
    for ident, frame in list(frames.items())[:MAX_THREADS]:
        thread = known.get(ident)
        # A thread whose time is not known may be computing: taken for idle, it could be called hung.
        is_owner = is_contended and ident == busiest and used[ident] >= OWNER_NS
        is_active = is_owner or ident not in used or used[ident] >= max(BUSY_NS, BUSY_SHARE * elapsed_s * 1e9)
        listed.append(
            {
                "pid": os.getpid(),
                "thread_id": ident,
                "thread_name": _name(thread),
                "os_thread_id": native.get(ident),
                "active": is_active,
                "owns_gil": is_owner,
                "frames": _frames(frame),
            }
        )
    listed.sort(key=lambda one: one["thread_name"] == "MainThread")
    return listed


def spill() -> tuple[int, int]:
    """A descriptor and a signal: after the signal, the descriptor's file has the frames of all threads as faulthandler
    writes them. Works while the lock is held. The caller owns the descriptor, which must stay open here. Raises OSError
    when the program has a use of its own for the signal."""
    if _is_caught(SPILL_SIGNAL):
        raise OSError(f"the program handles signal {SPILL_SIGNAL} itself")
    fd = os.memfd_create("everstep-spill", os.MFD_CLOEXEC)
    faulthandler.register(SPILL_SIGNAL, file=fd, all_threads=True, chain=False)
    return fd, int(SPILL_SIGNAL)


def _is_caught(signum: int) -> bool:
    """Whether this process has a handler for it, in C or Python."""
    caught = proc.catches("self", signum)
    if caught is None:
        raise OSError("/proc/self/status cannot be read")
    return caught


def _hand_over(others: list[int]) -> tuple[float, bool]:
    """Give the lock away a few times: how long it took, and whether one of `others`, the kernel's numbers of threads,
    kept it until asked for it."""
    began = time.perf_counter()
    task = threading.get_native_id()
    shortest = math.inf
    naps = 0
    while naps < NUM_NAPS:
        nap_s, others_ns = _nap(task)
        if others_ns >= OWNER_NS:
            shortest = min(shortest, nap_s)
        elif time.perf_counter() - began < STARVED_S and any(map(_wants_cpu, others)):
            continue
        naps += 1
    is_contended = shortest < math.inf and shortest - NAP_S >= 0.6 * sys.getswitchinterval()
    return time.perf_counter() - began, is_contended


def _nap(task: int) -> tuple[float, int]:
    """How long a nap took, without the time spent waiting for a CPU: a thread that waits for the GIL sleeps. And the
    CPU time of all other threads meanwhile, in ns."""
    began, before = time.perf_counter(), _sched_ns(task)
    used = time.process_time_ns() - time.thread_time_ns()
    time.sleep(NAP_S)
    used = time.process_time_ns() - time.thread_time_ns() - used
    elapsed_s, after = time.perf_counter() - began, _sched_ns(task)
    return elapsed_s if before is None or after is None else elapsed_s - (after[1] - before[1]) / 1e9, used


def _wants_cpu(task: int) -> bool:
    found = proc.stat("self", task)
    return found is not None and found.state == "R"


def _cpu_ns(task: int) -> int | None:
    """CPU time of one thread; None if the kernel does not provide it."""
    told = _sched_ns(task)
    return None if told is None else told[0]


def _sched_ns(task: int) -> tuple[int, int] | None:
    """How long one thread has had a CPU, and has waited for one; None if the kernel does not provide it."""
    return proc.sched_ns("self", task)


def _name(thread: threading.Thread | None) -> str | None:
    if thread is None:
        return None
    return "MainThread" if thread is threading.main_thread() else thread.name


def _frames(frame: FrameType | None) -> list[dict[str, Any]]:
    """Innermost first."""
    listed: list[dict[str, Any]] = []
    while frame is not None and len(listed) < MAX_FRAMES:
        code = frame.f_code
        listed.append({"name": code.co_name, "filename": code.co_filename, "line": frame.f_lineno})
        frame = frame.f_back
    return listed
