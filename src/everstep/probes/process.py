"""What the kernel says of a rank's processes: states, processor time, bytes read and written, tracers. From /proc.

Used for the device signal (`DeviceProbe`) and for evidence. A process that is gone, or may not be read, is left out.
"""

import os
from pathlib import Path

import msgspec

BUSY_SHARE = 0.05
"""Of one processor. Threads that only wait use less than a thousandth; a loader that fills a queue uses more."""

BUSY_BYTES = 4096
"""Read or written between two looks: a save to a slow disk uses no processor."""

MIN_INTERVAL_S = 0.2
"""Processor time is counted in hundredths of a second; shorter intervals measure rounding."""

CHILDREN_S = 5.0
"""How long a list of children is good: making it reads one file per thread."""

_TICKS = os.sysconf("SC_CLK_TCK")


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """One process, cumulative."""

    state: str
    cpu_s: float
    io_bytes: int | None  # None: may not be read


def usage(pid: int) -> Usage | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return Usage(state=fields[0], cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS, io_bytes=_io_bytes(pid))
    except (OSError, ValueError, IndexError):
        return None


def is_traced(pid: int) -> bool:
    """Whether a debugger is attached."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith("TracerPid:") and line.split()[1] != "0" for line in lines)


def descendants(pid: int, limit: int = 64) -> list[int]:
    """Children, their children, and so on; at most `limit`. Empty where the kernel does not tell."""
    found: list[int] = []
    queue = [pid]
    while queue and len(found) < limit:
        for child in _children(queue.pop(0)):
            found.append(child)
            queue.append(child)
    return found[:limit]


class DeviceProbe:
    """Processor time and input/output of a rank and its children. GPUs, sockets and the node's links are not read."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._children: list[int] = []
        self._listed_at = float("-inf")
        self._before: dict[int, Usage] = {}
        self._looked_at: float | None = None
        self._active_at: float | None = None
        self.state = ""

    def look(self, now: float) -> float | None:
        if self._looked_at is not None and now - self._looked_at < MIN_INTERVAL_S:
            return self._age(now)
        if now - self._listed_at >= CHILDREN_S:
            self._children, self._listed_at = descendants(self._pid), now
        seen = {pid: use for pid in (self._pid, *self._children) if (use := usage(pid)) is not None}
        if self._pid not in seen:
            return None
        self.state = seen[self._pid].state
        if self._looked_at is not None and self._is_active(seen, now - self._looked_at):
            self._active_at = now
        elif self._looked_at is None:
            self._active_at = now  # it exists: silence is counted from here
        self._before, self._looked_at = seen, now
        return self._age(now)

    def _is_active(self, seen: dict[int, Usage], interval_s: float) -> bool:
        cpu_s, num_bytes = 0.0, 0
        for pid, use in seen.items():
            before = self._before.get(pid)
            if before is not None:
                cpu_s += max(0.0, use.cpu_s - before.cpu_s)
                num_bytes += max(0, (use.io_bytes or 0) - (before.io_bytes or 0))
        return cpu_s >= BUSY_SHARE * interval_s or num_bytes >= BUSY_BYTES

    def _age(self, now: float) -> float | None:
        return None if self._active_at is None else max(0.0, now - self._active_at)


def _io_bytes(pid: int) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()[:2]  # rchar, wchar: also what the page cache takes
        return sum(int(line.split()[1]) for line in lines)
    except (OSError, ValueError, IndexError):
        return None


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += [int(word) for word in (thread / "children").read_text().split()]
    except (OSError, ValueError):
        return found
    return found
