"""Whether a process can be forked now and its twin continue later: threads, devices, children, pipes and open files."""

from __future__ import annotations

import os
import sys

from everstep.worker.process.signals import handlers_code, has_passed

TYPE_CHECKING = False  # `typing` would be imported before the program imports it
if TYPE_CHECKING:
    from types import FrameType

MAX_LISTED = 3
SAFE_THREADS = frozenset({"jemalloc_bg_thd"})
"""Threads of libraries that prepare themselves for a fork (pthread_atfork)."""

_WITH_FORK_HANDLERS = frozenset({"concurrent.futures.thread", "logging"})
_DEVICES = (
    "/dev/nvidia", "/dev/dxg", "/dev/kfd", "/dev/dri", "/dev/habanalabs", "/dev/accel", "/dev/davinci",
    "/dev/infiniband",
)  # fmt: skip
_SHARED = ("pipe:", "socket:", "anon_inode:")
_OURS = "/memfd:everstep"
"""The line of the board, and memory for snapshots: the process that continues gets its own."""
_READ_ONLY = 0


def threads() -> set[int]:
    """The threads of this process, by the kernel's numbers."""
    return {int(name) for name in os.listdir("/proc/self/task")}


def why_unfit(safe: set[int], own_fds: set[int]) -> str:
    """Why not; empty if it can. `safe`: threads that were there when torch had been imported: its numeric library's,
    which prepares itself for a fork."""
    return _in_a_signal() or _in_a_fork_handlers_module() or bad_threads(safe) or _children() or _bad_files(own_fds)


def end_prepared_threads() -> None:
    """End library threads by a fork that does nothing else.

    Threads of libraries that prepare themselves for a fork end before it, and come back when they are used. OpenBLAS's
    do, and scipy brings one of its own. For a process whose loss does not matter."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _in_a_signal() -> str:
    """Why no twin may be left here: the process is handling a signal. Empty if it is not.

    A twin that continues from here would do what the signal asks for, usually save and exit, although it was never sent
    one."""
    handlers = handlers_code()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in handlers:
            return f"it is in {frame.f_code.co_name}, which handles a signal"
        frame = frame.f_back
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, KeyboardInterrupt) or has_passed(error, handlers):
            return "a signal has interrupted it"
        error = error.__context__
    return ""


def _in_a_fork_handlers_module() -> str:
    """These take their locks before a fork and make them anew in the child. In the middle of their own functions, which
    hold the locks, the first waits for ever, and the second takes the lock away from who will release it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name in _WITH_FORK_HANDLERS:
            return f"it is in the middle of {name}, which handles forks itself"
        frame = frame.f_back
    return ""


def offsets(own_fds: set[int]) -> dict[int, int]:
    """Where regular files that are open are read: a twin shares the position with the rank."""
    found = {}
    for fd in _fds():
        if fd > 2 and fd not in own_fds and _target(fd).startswith("/"):
            try:
                found[fd] = os.lseek(fd, 0, os.SEEK_CUR)
            except OSError:
                continue
    return found


def bad_threads(safe: set[int]) -> str:
    bad = []
    for tid in threads() - safe - {os.getpid()}:
        try:
            with open(f"/proc/self/task/{tid}/comm", encoding="utf-8", errors="replace") as file:
                name = file.read().strip()
        except OSError:
            continue
        if name not in SAFE_THREADS:
            bad.append(name)
    return f"it has threads: {', '.join(sorted(bad)[:MAX_LISTED])}" if bad else ""


def _children() -> str:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            found = file.read().split()
    except OSError:
        return ""
    return f"it has child processes: {', '.join(found[:MAX_LISTED])}" if found else ""


def _bad_files(own_fds: set[int]) -> str:
    for fd in _fds():
        if fd <= 2 or fd in own_fds:
            continue
        target = _target(fd)
        if target.startswith(_DEVICES):
            return f"{target} is open"
        if target.startswith(_SHARED):
            return f"descriptor {fd} is open: {target}"
        if target.startswith(_OURS):
            continue
        if target.startswith("/") and not target.startswith(("/dev/", "/proc/", "/sys/")) and _is_written(fd):
            return f"{target} is open for writing"
    return ""


def _is_written(fd: int) -> bool:
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
            flags = next((int(line.split()[1], 8) for line in file if line.startswith("flags:")), 0)
    except (OSError, ValueError):
        return False
    return flags & 3 != _READ_ONLY


def _fds() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]


def _target(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""
