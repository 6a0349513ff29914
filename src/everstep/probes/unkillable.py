"""Processes that do not end on SIGKILL: whether one still moves, and what holds it.

A thread in uninterruptible sleep (a dead file server, a device driver, a frozen cgroup) takes no signal until the
kernel releases it. It differs from a process that is only slow to end (much memory to free, a device to reset) in the
kernel's counters: context switches and memory of all its threads do not change. A killed process never runs an
instruction of its program again, whenever it wakes up: the kernel ends it on the way out. This module reads /proc only,
and touches no file of the process.
"""

import platform
import time
from collections.abc import Callable
from pathlib import Path

from everstep.linux import proc

STUCK_S = 3.0
"""Seconds without a context switch of any thread, with one of them in uninterruptible sleep."""

_FD_CALLS = {
    "x86_64": {0, 1, 5, 8, 17, 18, 19, 20, 72, 73, 74, 75, 77, 217, 277, 285, 295, 296},
    "aarch64": {25, 29, 32, 46, 47, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 80, 82, 83, 84},
}
"""System calls with the descriptor of a file as their first argument."""

_Moved = tuple[object, ...]


class Stillness:
    """Follows one process; call `look` from time to time."""

    def __init__(self, pid: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._pid = pid
        self._clock = clock
        self._before: _Moved | None = None
        self._since = clock()

    def look(self) -> bool:
        """Whether it has been stuck for `STUCK_S`."""
        now = self._clock()
        seen = _counts(self._pid)
        if seen is None or seen != self._before:
            self._before, self._since = seen, now
            return False
        return now - self._since >= STUCK_S and any(isinstance(each, tuple) and each[1] == "D" for each in seen)


def describe(pid: int) -> str:
    """Text: the process, the kernel function in which it sleeps, and the file, as far as the kernel reports them."""
    name = _text(f"/proc/{pid}/comm").strip() or "unknown"
    threads = [tid for tid in proc.threads(pid) if _state(pid, tid) == "D"]
    if not threads:
        return f"process {pid} ({name})"
    first = threads[0]
    where = _text(f"/proc/{pid}/task/{first}/wchan").strip()
    held = f" in {where}" if where not in ("", "0") else ""
    about = _file_of(pid, first)
    frozen = _frozen_in(pid)
    by = f", frozen by cgroup {frozen}" if frozen else ""
    return f"process {pid} ({name}), in uninterruptible sleep{held}{about}{by}"


def _counts(pid: int) -> _Moved | None:
    """Values that change when any of its threads runs. None: the process is gone."""
    threads = proc.threads(pid)
    if not threads:
        return None
    memory = _text(f"/proc/{pid}/statm").split()[1:2]
    found: list[object] = [*memory]
    for tid in threads:
        found.append((tid, _state(pid, tid), *proc.switches(pid, tid)))
    return tuple(found)


def _state(pid: int, tid: int) -> str:
    found = proc.stat(pid, tid)
    return "" if found is None else found.state


def _file_of(pid: int, tid: int) -> str:
    words = _text(f"/proc/{pid}/task/{tid}/syscall").split()
    if len(words) < 2 or not words[0].isdigit() or int(words[0]) not in _FD_CALLS.get(platform.machine(), ()):
        return ""
    try:
        return f", on {Path(f'/proc/{pid}/fd/{int(words[1], 16)}').readlink()}"
    except (OSError, ValueError):
        return ""


def _frozen_in(pid: int) -> str:
    """The cgroup with the freezer (v1) that holds it; empty if there is none."""
    for line in _text(f"/proc/{pid}/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if "freezer" in controllers.split(",") and path != "/":
            state = _text(f"/sys/fs/cgroup/freezer{path}/freezer.state").strip()
            return path if state and state != "THAWED" else ""
    return ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
