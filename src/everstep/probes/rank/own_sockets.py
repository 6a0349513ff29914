"""Threads that wait for nothing but sockets whose other ends only the rank's own processes hold.

That is how event loops wake themselves up, and how processes of `multiprocessing.Pipe` talk. Nobody outside can end
such a wait. The kernel is asked only for evidence: it lists all sockets within the machine, and the descriptors of all
processes.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from everstep.analyzer.observations.records import Hold, ThreadWait
from everstep.linux import unix_sockets
from everstep.probes.rank import waiting

OWN = "waits for a socket of its own"


def with_own_sockets(waits: Iterable[ThreadWait], pids: Sequence[int]) -> list[ThreadWait]:
    """Marks them. `pids`: all processes of the rank."""
    waits = list(waits)
    asked = {wait.tid: waiting.awaited_sockets(wait.pid, wait.tid) for wait in waits if _waits_for_sockets(wait)}
    if not any(asked.values()):
        return waits
    peers = unix_sockets.peers()
    ends = {tid: inodes | {peers.get(inode, 0) for inode in inodes} for tid, inodes in asked.items()}
    wanted = {inode for inodes in ends.values() for inode in inodes if inode}
    held, elsewhere = _holders(wanted, set(pids))
    own = {tid for tid, inodes in ends.items() if inodes and inodes <= held and not inodes & elsewhere}
    return [msgspec.structs.replace(wait, hold=Hold.OWN, what=OWN) if wait.tid in own else wait for wait in waits]


def _waits_for_sockets(wait: ThreadWait) -> bool:
    return wait.hold is Hold.OUTSIDE and wait.what == waiting.FOR_A_SOCKET and not wait.is_store


def _holders(inodes: set[int], family: set[int]) -> tuple[set[int], set[int]]:
    """Those that a process of the family has open, and those that any other has."""
    held: set[int] = set()
    elsewhere: set[int] = set()
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are all it needs
        if name.isdigit():
            found = held if int(name) in family else elsewhere
            found |= inodes & _open_sockets(name)
    return held, elsewhere


def _open_sockets(pid: str) -> set[int]:
    found: set[int] = set()
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
            target = str(Path(f"/proc/{pid}/fd/{fd}").readlink())
            if target.startswith("socket:["):
                found.add(int(target[8:-1]))
    except OSError:
        return found  # it has ended, or belongs to another user, who cannot hold a rank's sockets
    return found
