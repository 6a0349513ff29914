"""Processes on a rank's CPU while the rank waits for it, and the time for which its cgroup's quota stopped it. From
/proc.

It takes two looks at all processes with a pause between them, only for a rank that waits. Processes in another PID
namespace are not visible, and are not named.
"""

import os
import time
from collections.abc import Collection
from pathlib import Path

import msgspec

from everstep.model.facts import Taken

INTERVAL_S = 0.3
"""CPU time is counted in hundredths of a second."""

MIN_SHARE = 0.1
MIN_BOUND_SHARE = 0.03
"""Several that are bound to one CPU share it: each has little."""

MAX_NAMED = 3
_TICKS = os.sysconf("SC_CLK_TCK")


class _Task(msgspec.Struct, frozen=True):
    name: str
    ticks: int
    core: int
    started: int


class Rivals(msgspec.Struct, frozen=True, kw_only=True):
    """`text`: `stress (pid 812) takes 98% of CPU 3`; empty: no visible process. `bound`: those that may not run
    everywhere, with their part of all that had this CPU beside the rank."""

    text: str = ""
    bound: tuple[Taken, ...] = ()


def find_rivals(pid: int, own: Collection[int], proc: Path = Path("/proc"), interval_s: float = INTERVAL_S) -> Rivals:
    """Processes on the CPU of this one. `own`: processes of the run, which are not named."""
    before = _tasks(proc)
    cores = set()
    if pid in before:
        cores.add(before[pid].core)
    begun = time.monotonic()
    time.sleep(interval_s)
    after = _tasks(proc)
    took_s = max(time.monotonic() - begun, 1e-3)
    if pid in after:
        cores.add(after[pid].core)
    shares, total = [], 0.0
    for other, task in after.items():
        known = before.get(other)
        if other == pid or known is None or known.started != task.started or task.core not in cores:
            continue
        share = (task.ticks - known.ticks) / _TICKS / took_s
        total += share
        if share >= MIN_BOUND_SHARE and other not in own:
            shares.append((share, other, task))
    shares.sort(key=lambda each: (-each[0], each[1]))
    text = ", ".join(
        f"{_printable(task.name)} (pid {other}) takes {min(share, 1.0):.0%} of CPU {task.core}"
        for share, other, task in shares[:MAX_NAMED]
        if share >= MIN_SHARE
    )
    bound = (each for each in shares if is_bound(each[1]))
    return Rivals(text=text, bound=tuple(Taken(other, _printable(task.name), s / total) for s, other, task in bound))


def is_bound(pid: int) -> bool:
    """Whether it may not run on all of this process's CPUs, so that it was pinned. False also if it is gone."""
    try:
        return not os.sched_getaffinity(0) <= os.sched_getaffinity(pid)
    except OSError:
        return False


def throttled_s(pid: int, proc: Path = Path("/proc"), root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Seconds for which the quota of the process's cgroup, or of one above it, kept it from running; 0 without a quota.
    None: not readable."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            found = _throttled(root, path, "throttled_usec", 1e6)
        elif "cpu" in controllers.split(","):
            found = _throttled(root / controllers, path, "throttled_time", 1e9)
        else:
            continue
        if found is not None:
            return found
    return None


def _throttled(base: Path, path: str, key: str, unit: float) -> float | None:
    """The largest value of all levels: each has its own quota. In a container the path may be the host's, and not
    exist: then the container's root is read."""
    best: float | None = None
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        try:
            text = base.joinpath(*parts[:depth], "cpu.stat").read_text()
        except OSError:
            continue
        words = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
        value = words.get(key, "0")
        best = max(best or 0.0, int(value) / unit if value.isdigit() else 0.0)
    return best


def _tasks(proc: Path) -> dict[int, _Task]:
    found = {}
    for name in os.listdir(proc):  # noqa: PTH208
        if name.isdigit():
            task = _task(proc / name / "stat")
            if task is not None:
                found[int(name)] = task
    return found


def _task(path: Path) -> _Task | None:
    try:
        head, _, tail = path.read_bytes().decode("utf-8", "replace").rpartition(")")
        words = tail.split()
        return _Task(head.partition("(")[2], int(words[11]) + int(words[12]), int(words[36]), int(words[19]))
    except (OSError, ValueError, IndexError):
        return None


def _printable(name: str) -> str:
    """A printable name: a process chooses its own."""
    return "".join(c if c.isprintable() else "?" for c in name)[:40]
