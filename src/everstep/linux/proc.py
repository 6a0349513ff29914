"""Reads /proc. What cannot be read, or is gone, is None or empty, and never 0: the caller says what that means.

Hundreds of these files are read per second: without pathlib and without decoding, at half the cost.
"""

import os
from typing import NamedTuple

TICKS_PER_S = os.sysconf("SC_CLK_TCK")

INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""The machine's own, as in /proc/PID/ns/pid: fixed in the kernel (PROC_PID_INIT_INO)."""

_MOST_BYTES = 65536


class Stat(NamedTuple):
    """A line of /proc/PID/stat."""

    pid: int
    name: str  # may hold anything, also brackets and blanks
    state: str  # "R", "S", "D", "T", "Z", ...
    parent: int
    ticks: int  # CPU time used so far
    began: int  # ticks after boot: with the pid that is one process and no later one

    @property
    def cpu_s(self) -> float:
        return self.ticks / TICKS_PER_S


def path_of(pid: int | str, tid: int | None = None) -> str:
    """The folder of a process, or of one of its threads. "self" is this process."""
    return f"/proc/{pid}" if tid is None else f"/proc/{pid}/task/{tid}"


def read(path: str) -> bytes:
    """A small file, whole. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = b""
        while part := os.read(fd, _MOST_BYTES):
            data += part
        return data
    finally:
        os.close(fd)


def read_or_nothing(path: str) -> bytes:
    try:
        return read(path)
    except OSError:
        return b""


def stat(pid: int | str, tid: int | None = None) -> Stat | None:
    return parse_stat(read_or_nothing(f"{path_of(pid, tid)}/stat"))


def parse_stat(line: bytes) -> Stat | None:
    head, bracket, tail = line.rpartition(b")")
    pid, _, name = head.partition(b" (")
    words = tail.split(None, 20)
    try:
        return Stat(
            pid=int(pid),
            name=name.decode(errors="replace"),
            state=words[0].decode(errors="replace"),
            parent=int(words[1]),
            ticks=int(words[11]) + int(words[12]),
            began=int(words[19]),
        ) if bracket else None  # fmt: skip
    except (ValueError, IndexError):
        return None


def status(pid: int | str, tid: int | None = None) -> dict[str, str]:
    """The fields of /proc/PID/status by name; empty when it is gone or may not be read."""
    lines = read_or_nothing(f"{path_of(pid, tid)}/status").decode(errors="replace").splitlines()
    return {name: value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}


def is_in_pid_namespace() -> bool:
    """Whether the kernel, in its log, may call our processes by other numbers than we do."""
    try:
        inode = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 - no pathlib here
    except OSError:
        return True
    return len(status("self").get("NSpid", "").split()) > 1 or inode != INITIAL_PID_NAMESPACE


def switches(pid: int, tid: int) -> tuple[str, ...]:
    """How often a thread has left a CPU, willingly and not; another value says that it was on one."""
    return tuple(value for name, value in status(pid, tid).items() if name.endswith("ctxt_switches"))


def catches(pid: int | str, signum: int) -> bool | None:
    """Whether the process, in C or Python, has a handler for the signal; None if that cannot be read."""
    try:
        return bool(int(status(pid)["SigCgt"], 16) >> (signum - 1) & 1)
    except (KeyError, ValueError):
        return None


def sched_ns(pid: int | str, tid: int | None = None) -> tuple[int, int] | None:
    """For how long a thread (of a process: its main thread) has had a CPU, and has waited for one. None also from a
    kernel that does not count, which says 0 0 0."""
    try:
        used, waited, times = map(int, read(f"{path_of(pid, tid)}/schedstat").split())
    except (OSError, ValueError):
        return None
    return (used, waited) if times else None


def threads(pid: int) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208
    except (OSError, ValueError):
        return []


def children(pid: int, tid: int | None = None) -> list[int]:
    """Process ids of what a process, or one of its threads, has started or adopted; an adopted one can be listed under
    any thread. Empty also where the kernel does not list them (`children_by_parent` does)."""
    files = (f"{path_of(pid, each)}/children" for each in (threads(pid) if tid is None else [tid]))
    return [int(word) for path in files for word in read_or_nothing(path).split()]


def processes() -> list[int]:
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]


def children_by_parent() -> dict[int, list[int]]:
    """Children of all processes. For kernels without /proc/PID/task/TID/children, and for whole trees."""
    found: dict[int, list[int]] = {}
    for pid in processes():
        one = stat(pid)
        if one is not None:
            found.setdefault(one.parent, []).append(pid)
    return found


def parse_sizes(text: str) -> dict[str, int]:
    """Lines as in /proc/meminfo, in kB as they say; those without a number are left out."""
    values = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            values[name] = int(words[0])
    return values


def available_bytes() -> int | None:
    """Memory of the machine that can be had without swapping."""
    kib = parse_sizes(read_or_nothing("/proc/meminfo").decode(errors="replace")).get("MemAvailable")
    return None if kib is None else kib * 1024
