"""The wait of a quiet rank for something that may just be late, also through its own threads and processes.

The agent's monitor calls it for ranks with stacks that show a wait, but not for each other. If the main thread waits
for a thread or process of its own rank, it inherits that one's wait (`analyzer.hangs.openers`).
"""

from collections.abc import Mapping, Sequence

from everstep.analyzer.hangs.certainty import LONGEST_S
from everstep.analyzer.hangs.openers import find_opener
from everstep.analyzer.hangs.signals import WaitsOn
from everstep.analyzer.observations.records import Hold, Thread, ThreadWait
from everstep.probes.rank import waiting
from everstep.probes.rank.thread_waits import thread_wait, thread_waits
from everstep.probes.rank.waiting import Wait

MAX_PROCESSES = 16
_STUCK = "DTtZX"
"""Uninterruptible, stopped, traced, ended: in these states no outside event helps."""


def find_wait(
    pid: int,
    children: Sequence[int],
    *,
    is_busy: bool,
    in_loader: bool,
    threads: Mapping[int, Thread] | None = None,
    store_port: int | None = None,
) -> Wait | None:
    """Return what the rank waits for that may just be late; None if there is nothing, or it is unknown.

    `is_busy`: the rank or a child uses a CPU or a disk; as the main thread waits, that is another thread or process,
    and the rank waits for it (a pool, a tokenizer's threads). `in_loader`: its stack shows that it waits for its
    loader's processes. `threads`: Python's threads by kernel number, from the last look. `store_port`: port of the
    job's own store, where a rank waits for other ranks. A timer that outlasts every collective does not count either.
    """
    found = _find(pid, children, is_busy=is_busy, in_loader=in_loader, threads=threads or {})
    if found is None or found.on is not WaitsOn.OUTSIDE or found.left_s is None:
        is_outside = found is not None and found.on is WaitsOn.OUTSIDE and not is_busy
        return None if is_outside and _is_at_store(pid, store_port) else found
    return None if found.left_s > LONGEST_S else found


def _is_at_store(pid: int, store_port: int | None) -> bool:
    main = thread_wait(pid, pid, store_port) if store_port is not None else None
    return main is not None and main.is_store


def _find(
    pid: int, children: Sequence[int], *, is_busy: bool, in_loader: bool, threads: Mapping[int, Thread]
) -> Wait | None:
    processes = (pid, *children[:MAX_PROCESSES])
    states = [waiting.state(each) for each in processes]
    if states[0] != "S":
        return None
    own = waiting._own_wait(pid)
    polls = in_loader and (
        own is None or waiting.is_timed(own)
    )  # else the loader reads in this process: num_workers is 0
    if polls:
        own = waiting._INSIDE
    if is_busy:  # also in uninterruptible sleep, the usual state of readers
        return own if own is not None and own.on is WaitsOn.OUTSIDE else waiting._INSIDE
    if own is not None and own.on is WaitsOn.OUTSIDE:
        return own
    if any(each and each in _STUCK for each in states):
        return None
    return _inherited(processes, threads, polls=polls)


def _inherited(processes: Sequence[int], threads: Mapping[int, Thread], *, polls: bool) -> Wait | None:
    waits = thread_waits(processes)
    main = next((wait for wait in waits if wait.tid == processes[0]), None)
    if main is None:
        return None
    if polls:
        main = ThreadWait(pid=main.pid, tid=main.tid, name=main.name, hold=Hold.OWN)
    if main.hold not in (Hold.LOCK, Hold.OWN):
        return None
    opener = find_opener(main, waits, threads)
    return None if opener is None else Wait(what=opener.what, left_s=opener.left_s)
