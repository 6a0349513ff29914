"""Waits of each thread of a rank and of its children, from the kernel: to find out who could end a wait within the
rank.

It reads files of /proc and some bytes of memory, stops no process, and touches no file of the rank (see `waiting`). A
thread that ends meanwhile is left out.
"""

import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from everstep.analyzer.hangs.openers import ACCEPTS
from everstep.analyzer.hangs.signals import WaitsOn
from everstep.analyzer.observations.records import Hold, ThreadWait
from everstep.linux import proc
from everstep.probes.rank import waiting

MAX_THREADS = 512
"""Threads per process. A thread beyond these could do anything: one more, unknown thread stands for them."""

SETTLE_S = 0.3
"""A thread that was woken up runs within milliseconds, on a busy machine within tenths of a second."""

_STATES = {"T": Hold.STOPPED, "t": Hold.STOPPED, "Z": Hold.ENDED, "X": Hold.ENDED, "R": Hold.NOTHING}
_MORE_LOCKS = {"x86_64": (449,), "aarch64": (449,)}
"""futex_waitv."""

_ACCEPTS = {"x86_64": (43, 288), "aarch64": (202, 242)}


def settled_waits(pids: Sequence[int], store_port: int | None = None) -> list[ThreadWait]:
    """Waits from two looks: in a single look, a thread that has just received what it waited for looks like one that
    never will."""
    before = {tid: proc.switches(pid, tid) for pid in pids for tid in _tids(pid)[:MAX_THREADS]}
    time.sleep(SETTLE_S)
    return [
        msgspec.structs.replace(
            wait, moved=wait.tid not in before or before[wait.tid] != proc.switches(wait.pid, wait.tid)
        )
        for wait in thread_waits(pids, store_port)
    ]


def thread_waits(pids: Sequence[int], store_port: int | None = None) -> list[ThreadWait]:
    """Waits of all threads. The first process is the rank's own, its main thread first."""
    found: list[ThreadWait] = []
    for pid in pids:
        tids = _tids(pid)
        found += [wait for tid in tids[:MAX_THREADS] if (wait := thread_wait(pid, tid, store_port)) is not None]
        if len(tids) > MAX_THREADS:
            found.append(ThreadWait(pid=pid, tid=0, name="more threads"))
    return found


def thread_wait(pid: int, tid: int, store_port: int | None = None) -> ThreadWait | None:
    """The wait of one thread; None if it is gone."""
    name, state = _stat(pid, tid)
    if not state:
        return None
    found = _hold(pid, tid, state, store_port)
    return msgspec.structs.replace(found, name=name)


def with_ranks(waits: Iterable[ThreadWait], pids_of: Mapping[int, Sequence[int]]) -> list[ThreadWait]:
    """Says which ranks hold the file locks that are waited for. `pids_of`: processes of each rank of this machine."""
    rank_of = {pid: rank for rank, pids in pids_of.items() for pid in pids}
    return [
        msgspec.structs.replace(wait, held_by=tuple(dict.fromkeys(rank_of[pid] for pid in wait.holders)))
        if wait.holders and all(pid in rank_of for pid in wait.holders)
        else wait
        for wait in waits
    ]


def with_family(waits: Iterable[ThreadWait], pids: Sequence[int]) -> list[ThreadWait]:
    """Marks waits for pipes that other processes hold too as waits for the outside. Looks at the descriptors of all
    readable processes: some tens of milliseconds, so only for evidence."""
    waits = list(waits)
    pipes = {wait.what.partition("pipe:")[2] for wait in waits if "pipe:" in wait.what}
    shared = _held_elsewhere(pipes, set(pids)) if pipes else set()
    outside = {"hold": Hold.OUTSIDE, "what": "waits for a pipe from another program"}
    return [msgspec.structs.replace(w, **outside) if w.what.partition("pipe:")[2] in shared else w for w in waits]


def _hold(pid: int, tid: int, state: str, store_port: int | None) -> ThreadWait:
    def held(hold: Hold, what: str = "") -> ThreadWait:
        return ThreadWait(pid=pid, tid=tid, hold=hold, what=what)

    if state in _STATES:
        return held(_STATES[state])
    words = waiting._text(f"/proc/{pid}/task/{tid}/syscall").split()
    if words[:1] == ["running"]:
        return held(Hold.NOTHING)
    if state == "D":
        return held(Hold.DISK, "waits for a disk")
    if len(words) < 7 or not words[0].isdigit():
        return held(Hold.UNKNOWN)
    call = waiting._CALLS.get(platform.machine(), {}).get(int(words[0]))
    if int(words[0]) in _MORE_LOCKS.get(platform.machine(), ()):
        return held(Hold.LOCK)
    if call == "futex":
        return held(Hold.TIMED if int(words[4], 16) else Hold.LOCK)
    if call == "child":
        return held(Hold.OWN, "waits for a process of its own")
    if int(words[0]) in _ACCEPTS.get(platform.machine(), ()):
        return held(Hold.OUTSIDE, ACCEPTS)
    wait = waiting._own_wait(pid, tid)
    return held(Hold.UNKNOWN) if wait is None else _of_wait(pid, tid, wait, words, call or "", store_port)


def _of_wait(pid: int, tid: int, wait: waiting.Wait, words: list[str], call: str, store_port: int | None) -> ThreadWait:
    if waiting.is_timed(wait):
        return ThreadWait(pid=pid, tid=tid, hold=Hold.TIMED, left_s=wait.left_s)
    if wait.on is WaitsOn.OUTSIDE:
        is_store = store_port is not None and call in ("read", "poll") and _is_to(pid, tid, words, call, store_port)
        return ThreadWait(
            pid=pid,
            tid=tid,
            hold=Hold.TIMER if call == "sleep" else Hold.OUTSIDE,
            what="waits for the job's own store" if is_store else wait.what,
            left_s=wait.left_s,
            is_store=is_store,
            holders=wait.holders,
        )
    pipe = waiting._target(pid, int(words[1], 16)) if call == "read" else ""
    return ThreadWait(pid=pid, tid=tid, hold=Hold.OWN, what=f"waits for {pipe or 'a process of its own'}")


def _is_to(pid: int, tid: int, words: list[str], call: str, port: int) -> bool:
    """Whether the socket that the thread waits on is connected to this port."""
    fds = [int(words[1], 16)] if call == "read" else waiting._polled(pid, [int(word, 16) for word in words[1:3]])
    inodes = {waiting._target(pid, fd).removeprefix("socket:[").removesuffix("]") for fd in fds}
    for name in ("tcp", "tcp6"):
        for line in waiting._text(f"/proc/{pid}/net/{name}").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[9] in inodes and int(fields[2].rpartition(":")[2], 16) == port:
                return True
    return False


def _held_elsewhere(pipes: set[str], family: set[int]) -> set[str]:
    """The pipes ("[123]") that a process outside the family has open."""
    found: set[str] = set()
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are all it needs
        if not name.isdigit() or int(name) in family or found == pipes:
            continue
        try:
            for fd in os.listdir(f"/proc/{name}/fd"):  # noqa: PTH208
                target = str(Path(f"/proc/{name}/fd/{fd}").readlink())
                if target.startswith("pipe:") and target[5:] in pipes:
                    found.add(target[5:])
        except OSError:
            continue  # it has ended, or belongs to another user, who cannot hold a rank's pipes
    return found


def _tids(pid: int) -> list[int]:
    return sorted(proc.threads(pid), key=lambda tid: tid != pid)


def _stat(pid: int, tid: int) -> tuple[str, str]:
    found = proc.stat(pid, tid)
    return ("", "") if found is None else (found.name, found.state)
