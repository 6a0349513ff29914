"""Whether a kernel log line is about a process that is not of this run: on a shared machine most are not.

The answer is only given if certain. The process is alive; neither it nor an ancestor is a rank, this agent, or of any
Everstep run; and the kernel uses the same pids as this process.
"""

import os
from collections.abc import Callable, Iterable

from everstep.linux import proc

_OURS = b"EVERSTEP_RUN_ID="
_MOST_ANCESTORS = 64


def strangers_among(pids: Iterable[str], rank_of: Callable[[int], int | None]) -> str:
    """ "process 4711 (python)", the first of several; empty if one of them may be ours, or there is none."""
    named = [_stranger(pid, rank_of) for pid in pids]
    return named[0] if named and all(named) else ""


def _stranger(pid: str, rank_of: Callable[[int], int | None]) -> str:
    seen = proc.stat(int(pid)) if pid.isdecimal() and not proc.is_in_pid_namespace() else None
    return f"process {pid} ({seen.name})" if seen is not None and _is_no_rank(seen.pid, rank_of) else ""


def _is_no_rank(pid: int, rank_of: Callable[[int], int | None]) -> bool:
    """False also if unknown: a process that ends during the check."""
    for _ in range(_MOST_ANCESTORS):
        if pid == os.getpid() or rank_of(pid) is not None or _OURS in proc.read_or_nothing(f"/proc/{pid}/environ"):
            return False
        seen = proc.stat(pid)
        if seen is None:
            return False
        if seen.parent <= 1:
            return True
        pid = seen.parent
    return False
