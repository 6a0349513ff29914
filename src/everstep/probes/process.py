"""The kernel's data on a rank's processes: states, CPU time, bytes read and written, tracers. From /proc.

Used for the device signal (`DeviceProbe`) and for evidence. A process that is gone or not readable is left out.
"""

import resource

import msgspec

from everstep.linux import proc

BUSY_SHARE = 0.05
"""Share of one CPU. Threads that only wait use less than a thousandth; a loader that fills a queue uses more."""

BUSY_BYTES = 4096
"""Bytes read or written between two looks: a save to a slow disk uses no CPU."""

MIN_INTERVAL_S = 0.45
"""CPU time is counted in hundredths of a second. Shorter intervals measure rounding, and count our own thread's
recording in the rank as work of the rank: all ranks of a hung job would seem alive for a window."""

CHILDREN_S = 5.0
"""Seconds for which a list of children is used: making it reads one file per thread."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """One process, cumulative."""

    state: str
    cpu_s: float


def usage(pid: int) -> Usage | None:
    found = proc.stat(pid)
    return None if found is None else Usage(state=found.state, cpu_s=found.cpu_s)


def cpu_left_s(pid: int) -> float | None:
    """Seconds of CPU time until the kernel sends SIGXCPU (`ulimit -t`). None: no limit, or unknown."""
    used = usage(pid)
    try:
        limit_s, _ = resource.prlimit(pid, resource.RLIMIT_CPU)
    except OSError:
        return None
    return None if used is None or limit_s == resource.RLIM_INFINITY else max(0.0, limit_s - used.cpu_s)


def is_traced(pid: int) -> bool:
    """Whether a debugger is attached."""
    return proc.status(pid).get("TracerPid", "0") != "0"


def descendants(pid: int, limit: int = 64) -> list[int]:
    """Children, their children, and so on; at most `limit`. Empty if the kernel does not list them."""
    found: list[int] = []
    queue = [pid]
    while queue and len(found) < limit:
        for child in proc.children(queue.pop(0)):
            found.append(child)
            queue.append(child)
    return found[:limit]


class DeviceProbe:
    """CPU time and input/output of a rank and its children. Sockets belong to `TrafficProbe`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._children: list[int] = []
        self._listed_at = float("-inf")
        self._before: dict[int, Usage] = {}
        self._io_before: dict[int, int] = {}
        self._looked_at: float | None = None
        self._active_at: float | None = None
        self.state = ""

    @property
    def pids(self) -> tuple[int, ...]:
        """The rank's process and its children, as last listed."""
        return (self._pid, *self._children)

    def look(self, now: float, *, is_quiet: bool = False) -> float | None:
        """`is_quiet`: list the children again, because every moment counts: a loader's processes may be new."""
        if self._looked_at is not None and now - self._looked_at < MIN_INTERVAL_S:
            return self._age(now)
        if is_quiet or now - self._listed_at >= CHILDREN_S:
            self._children, self._listed_at = descendants(self._pid), now
        seen = {pid: use for pid in self.pids if (use := usage(pid)) is not None}
        if self._pid not in seen:
            return None
        self.state = seen[self._pid].state
        if self._looked_at is None or self._computes(seen, now - self._looked_at):
            self._active_at = now  # first look: the process exists, and silence counts from here
            self._io_before = {}
        elif self._transfers(seen):
            self._active_at = now
        self._before, self._looked_at = seen, now
        return self._age(now)

    def _computes(self, seen: dict[int, Usage], interval_s: float) -> bool:
        known = [(use, before) for pid, use in seen.items() if (before := self._before.get(pid)) is not None]
        return sum(max(0.0, use.cpu_s - before.cpu_s) for use, before in known) >= BUSY_SHARE * interval_s

    def _transfers(self, seen: dict[int, Usage]) -> bool:
        """Whether it reads or writes. Only checked if it does not compute: it costs as much as all the rest."""
        counted = {pid: num_bytes for pid in seen if (num_bytes := _io_bytes(pid)) is not None}
        grown = sum(max(0, value - self._io_before.get(pid, value)) for pid, value in counted.items())
        self._io_before = counted
        return grown >= BUSY_BYTES

    def _age(self, now: float) -> float | None:
        return None if self._active_at is None else max(0.0, now - self._active_at)


def _io_bytes(pid: int) -> int | None:
    """Bytes read and written so far; None: not permitted."""
    try:
        lines = proc.read(f"/proc/{pid}/io").splitlines()[:2]  # rchar, wchar: they include the page cache
        return sum(int(line.split()[1]) for line in lines)
    except (OSError, ValueError, IndexError):
        return None
