"""Signs that an agent on this machine wants to send and cannot: such an agent is not lost.

The kernel counts for every thread how long it has waited for a CPU (`/proc/PID/task/TID/schedstat`), and shows whether
it sleeps uninterruptibly. An agent's main thread is the one that sends, but any other may hold the GIL meanwhile.
Agents of other machines cannot be seen from here, and an unseen cause does not count as an excuse.
"""

import os
import socket

from everstep.linux import proc
from everstep.model.names import own_machine_name

_NS = 1e9
_IS_AGENT = b"everstep.agent"


class Starved:
    """By node: the process that speaks for it, if it runs here."""

    def __init__(self) -> None:
        self._host = own_machine_name(socket.gethostname())
        self._pids: dict[str, int] = {}

    def joined(self, node: str, host: str, pid: int) -> None:
        """An agent said where it is; believed as far as such a process is there."""
        self._pids.pop(node, None)
        if host == self._host and _IS_AGENT in proc.read_or_nothing(f"/proc/{pid}/cmdline"):
            self._pids[node] = pid

    def waited_s(self, node: str) -> float:
        """Return how long the thread of it that waited longest for a CPU did so, since it began: others may have waited
        at the same time. 0 if unknown."""
        pid = self._pids.get(node)
        return self._waited_s(pid) if pid is not None else 0.0

    def engine_waited_s(self) -> float:
        """Return how long the threads of the launcher have waited for a CPU: it ends nodes, and is the controller's
        parent. 0 if unknown."""
        return self._waited_s(os.getppid())

    def is_blocked(self, node: str) -> bool:
        """It sleeps in the kernel where no signal wakes it: a page from a slow disk, a child that it starts."""
        pid = self._pids.get(node)
        found = [proc.stat(pid, tid) for tid in proc.threads(pid)] if pid is not None else []
        return any(each is not None and each.state == "D" for each in found)

    def _waited_s(self, pid: int) -> float:
        told = [proc.sched_ns(pid, tid) for tid in proc.threads(pid)]
        return max((each[1] for each in told if each is not None), default=0) / _NS
