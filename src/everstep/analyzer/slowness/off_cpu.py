"""Why a rank did not run, as text, from the kernel's view of its threads (eBPF). Pure.

It only adds detail: no verdict needs it. A sentence names causes outside the run: a foreign process on the CPU, a
quota, a file, or a lock that another process held. Effects of the ranks on each other are left to the fail-slow vote.
"""

from collections.abc import Collection, Mapping

import msgspec

from everstep.model.facts import Taken

MIN_SHARE = 0.05
"""Share of the window. Less is the noise of any machine: interrupts, daemons, the agent itself."""

MIN_FOREIGN = 0.5
"""Share of the wait that must be known to come from processes outside the run."""

MAX_NAMED = 3
MIN_TAKEN = 0.01
"""Share of the window; a process that took less is not reported."""

RUN_QUEUE = "run queue"
"""The signal beside the kinds of sleep."""

IDLE, UNKNOWN, QUOTA = 0, 0xFFFFFFFF, 0xFFFFFFFE
"""Takers that are no process: the CPU was idle, the taker was not seen, the quota of the cgroup was used up."""

FUTEX, FILE_LOCK, SWAP, FAULT, TIMER = "futex", "file lock", "swap", "fault", "timer"
RECLAIM, GROUP_RECLAIM = "reclaim", "cgroup reclaim"
"""Kinds of sleep with words of their own. Other kinds are the name of the operation on a file: read, fsync, open. A
timer has no culprit, because the program asked to sleep: it is a figure of the vote and no line of evidence."""

_WORDS = {
    FUTEX: "for a lock (futex)",
    FILE_LOCK: "for a file lock",
    RECLAIM: "freeing memory, of which the machine had too little (direct reclaim)",
    GROUP_RECLAIM: "freeing memory, at the limit of its cgroup",
    SWAP: "for memory to be swapped in",
    FAULT: "for pages of a mapped file",
}


class Taker(msgspec.Struct, frozen=True):
    """A process that had the CPU while a thread was ready to run."""

    pid: int
    name: str
    wait_s: float
    count: int


class Sleep(msgspec.Struct, frozen=True):
    """Long sleeps of a thread at one place, or time that it spent in the kernel instead of on its own work."""

    kind: str
    total_s: float
    count: int
    most_s: float
    path: str = ""  # path of the file, with its mount
    waker: int = 0  # process that ended the sleep by a system call; 0: none, or unknown
    waker_name: str = ""


class ThreadView(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    tid: int
    takers: tuple[Taker, ...] = ()
    sleeps: tuple[Sleep, ...] = ()

    @property
    def held_s(self) -> float:
        return sum(each.wait_s for each in self.takers) + sum(each.total_s for each in self.sleeps)


class KernelView(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel's view of the run's processes on a node, over one window."""

    window_s: float
    threads: tuple[ThreadView, ...] = ()
    cost_s: float | None = None  # CPU time of the observing process in this window
    missing: str = ""  # what cannot be observed here, and why


def waits_text(view: KernelView, pids: Collection[int], own: Collection[int]) -> str:
    """`it was ready and not scheduled for 31% of the last 10 s, CPU taken by burn (pid 4711)`. About the thread of the
    rank that waited longest; empty if it waited little, or for the run's own processes. `pids`: processes of the rank;
    `own`: of the run."""
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
    told = [_taker_text(taker, view.window_s, len(foreign)) for taker in foreign[:MAX_NAMED]]
    share = min(1.0, waited_s / view.window_s)
    window = f"{share:.0%} of the last {view.window_s:.0f} s"
    return f"it was ready and not scheduled for {window}, CPU taken by {', '.join(told)}"


def _is_foreign(taker: Taker, own: Collection[int]) -> bool:
    return taker.pid not in (IDLE, UNKNOWN) and taker.pid not in own


def _taker_text(taker: Taker, window_s: float, num_takers: int) -> str:
    share = f" ({taker.wait_s / window_s:.0%})" if num_takers > 1 else ""
    name = "the CPU quota of its cgroup" if taker.pid == QUOTA else f"{taker.name or '?'} (pid {taker.pid})"
    return f"{name}{share}"


def sleeps_text(view: KernelView, pid: int, pids: Collection[int], own: Collection[int]) -> tuple[str, str]:
    """`it slept 1.9 s in fsync of /data/a.pt (/dev/sdb), 5 times, at most 0.6 s`: the longest sleep of the main thread
    of the rank, or of a process below it, and its kind. Sleep of other threads is normal."""
    slept = [
        (sleep, each.pid)
        for each in view.threads
        if each.pid in pids and each.pid == each.tid
        for sleep in each.sleeps
        if sleep.kind != TIMER and not _is_own(sleep, own) and sleep.total_s >= MIN_SHARE * view.window_s
    ]
    if not slept:
        return "", ""
    longest, sleeper = max(slept, key=lambda each: (each[1] == pid, each[0].total_s))
    who = "it" if sleeper == pid else f"its process {sleeper}"
    place = f" of {longest.path}" if longest.path else ""
    what = _WORDS.get(longest.kind, f"in {longest.kind}") + place
    ended = f", ended by {longest.waker_name or '?'} (pid {longest.waker})" if _is_lock(longest) else ""
    times = f", {longest.count} times, at most {longest.most_s:.2g} s" if longest.count > 1 else ""
    did = "spent" if longest.kind in (RECLAIM, GROUP_RECLAIM) else "slept"
    said = f"{who} {did} {longest.total_s:.2g} s {what}{ended}{times}, in the last {view.window_s:.0f} s"
    return said, longest.kind


def _is_own(sleep: Sleep, own: Collection[int]) -> bool:
    """Whether the run itself caused the sleep: threads wait for each other by futexes, as processes of one program do
    for their queues."""
    return sleep.kind == FUTEX and (not sleep.waker or sleep.waker in own)


def _is_lock(sleep: Sleep) -> bool:
    return sleep.kind in (FUTEX, FILE_LOCK) and bool(sleep.waker)


def takers(view: KernelView, pid: int, own: Collection[int]) -> tuple[Taken, ...]:
    """Foreign processes that had the CPU while the main thread of `pid` was ready to run, largest share first."""
    if view.window_s <= 0:
        return ()
    listed = next((each.takers for each in view.threads if each.pid == each.tid == pid), ())
    found = [
        Taken(each.pid, each.name, min(1.0, each.wait_s / view.window_s))
        for each in listed
        if each.pid != QUOTA and _is_foreign(each, own) and each.wait_s >= MIN_TAKEN * view.window_s
    ]
    return tuple(sorted(found, key=lambda each: (-each.share, each.pid)))


def held(view: KernelView, pid: int, own: Collection[int]) -> dict[str, float]:
    """Kind of sleep of the main thread of `pid` -> share of the window."""
    found = shares(view, (pid,), own)
    found.pop(RUN_QUEUE, None)
    return found


def shares(view: KernelView, pids: Collection[int], own: Collection[int]) -> dict[str, float]:
    """Signal -> share of the window: the run queue, and each kind of sleep of main threads."""
    if view.window_s <= 0:
        return {}
    found: dict[str, float] = {}
    for each in view.threads:
        if each.pid not in pids:
            continue
        waited_s = sum(taker.wait_s for taker in each.takers)
        found[RUN_QUEUE] = max(found.get(RUN_QUEUE, 0.0), waited_s / view.window_s)
        for sleep in each.sleeps if each.pid == each.tid else ():
            if not _is_own(sleep, own):
                found[sleep.kind] = found.get(sleep.kind, 0.0) + sleep.total_s / view.window_s
    return found


def says(
    view: KernelView, pid: int, pids: Collection[int], own: Collection[int], usual: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The lines of evidence for one rank. `pid`: its first process. `usual`: the usual value of each signal, as
    text."""
    known = usual or {}
    slept, kind = sleeps_text(view, pid, pids, own)
    lines = ((waits_text(view, pids, own), RUN_QUEUE), (slept, kind))
    return tuple(f"{line} ({known[signal]})" if known.get(signal) else line for line, signal in lines if line)
