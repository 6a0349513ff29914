"""Why a rank did not run, from what the kernel saw of its threads (eBPF), in words. Pure.

It only sharpens: no verdict needs it. A sentence names what is not the run's own doing: a foreign process that had the
CPU, a quota, a file, a lock that another process held. What the ranks do to each other is left to the fail-slow vote.
"""

from collections.abc import Collection, Iterable

import msgspec

MIN_SHARE = 0.05
"""Of the window. Less is the noise of any machine: interrupts, daemons, the agent itself."""

MIN_FOREIGN = 0.5
"""Of the wait: as much must be known to be somebody else's."""

MAX_NAMED = 2
MAX_SAID = 3
IDLE, UNKNOWN = 0, 0xFFFFFFFF
"""Takers that are no process: nobody had the CPU, and it was not seen who had it."""

QUOTA_S = 0.001
"""A CPU that is idle while a thread is ready is woken up within microseconds. On average longer: it may not run."""


class Taker(msgspec.Struct, frozen=True):
    """Who had the CPU while a thread was ready to run."""

    pid: int
    name: str
    wait_s: float
    count: int


class Sleep(msgspec.Struct, frozen=True):
    """Long sleeps of a thread at one place."""

    kind: str  # of `KINDS`
    total_s: float
    count: int
    most_s: float
    path: str = ""  # of the file, as far as its mount
    waker: int = 0  # process that ended the sleep by a system call; 0: none, or not known
    waker_name: str = ""


class ThreadView(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    tid: int
    takers: tuple[Taker, ...] = ()
    sleeps: tuple[Sleep, ...] = ()


class KernelView(msgspec.Struct, frozen=True, kw_only=True):
    """Of the run's processes on a node, over one window."""

    window_s: float
    threads: tuple[ThreadView, ...] = ()
    cost_s: float | None = None  # CPU time of the process that looks, in this window


def waits_text(view: KernelView, pids: Collection[int], own: Collection[int]) -> str:
    """`it was ready and not scheduled for 31% of the last 10 s, CPU taken by burn (pid 4711)`. Of the rank's thread
    that waited longest; empty: little, or by the run's own processes. `pids`: the rank's; `own`: the run's."""
    worst = max(
        (each for each in view.threads if each.pid in pids),
        key=lambda each: sum(taker.wait_s for taker in each.takers),
        default=None,
    )
    if worst is None or view.window_s <= 0:
        return ""
    waited_s = sum(taker.wait_s for taker in worst.takers)
    foreign = sorted((t for t in worst.takers if _is_foreign(t, own)), key=lambda t: (-t.wait_s, t.pid))
    foreign_s = sum(taker.wait_s for taker in foreign)
    if waited_s < MIN_SHARE * view.window_s or foreign_s < MIN_FOREIGN * waited_s:
        return ""
    names = ", ".join(_taker_text(taker, view.window_s, len(foreign)) for taker in foreign[:MAX_NAMED])
    share = min(1.0, waited_s / view.window_s)
    return f"it was ready and not scheduled for {share:.0%} of the last {view.window_s:.0f} s, {names}"


def _is_foreign(taker: Taker, own: Collection[int]) -> bool:
    if taker.pid == IDLE:
        return taker.wait_s >= QUOTA_S * taker.count
    return taker.pid != UNKNOWN and taker.pid not in own


def _taker_text(taker: Taker, window_s: float, num_takers: int) -> str:
    share = f" ({taker.wait_s / window_s:.0%})" if num_takers > 1 else ""
    if taker.pid == IDLE:
        return f"held back by a CPU quota: no other process had its CPU{share}"
    return f"CPU taken by {taker.name or '?'} (pid {taker.pid}){share}"


def says(view: KernelView, pids: Collection[int], own: Collection[int]) -> tuple[str, ...]:
    """All that is worth a line of one rank."""
    lines: Iterable[str] = (waits_text(view, pids, own),)
    return tuple(line for line in lines if line)[:MAX_SAID]
