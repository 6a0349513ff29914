"""What a thread does as the kernel sees it: its system call, the file it is about, where in the kernel it waits.

For ranks whose Python stack cannot be read, and for whatever sleeps uninterruptibly: there no debugger gets an
answer, and the kernel's own functions say which file system or driver it is. Files of /proc only; nobody is stopped for
it. What may not be read is left out, and `why` says so. Called when evidence is collected, never in a steady state.

A native stack of user space (py-spy --native) is not taken: it stops the process while its symbols are read.
"""

import os
import platform
from pathlib import Path

from everstep.analyzer.observations.records import KernelThread
from everstep.linux import proc

MAX_THREADS = 16
"""The main thread is first; what a rank has beyond these are pools that wait for work."""

MAX_KERNEL_FRAMES = 12

MAX_LOOKS = 3
"""State and call are files of their own, and the kernel's answer about the call comes once the thread is off its
processor: "running" and "in read" of two moments would be told as one. A thread whose state is another one afterwards
is looked at again; one that never stays in a state is told as it was last seen."""

_CALLS = {
    "x86_64": {
        0: "read", 1: "write", 7: "poll", 16: "ioctl", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev",
        23: "select", 34: "pause", 35: "nanosleep", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom",
        46: "sendmsg", 47: "recvmsg", 61: "wait4", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync",
        202: "futex", 230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 257: "openat", 262: "newfstatat",
        270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept4", 332: "statx", 426: "io_uring_enter",
        449: "futex_waitv",
    },
    "aarch64": {
        63: "read", 64: "write", 73: "ppoll", 29: "ioctl", 67: "pread64", 68: "pwrite64", 65: "readv", 66: "writev",
        72: "pselect6", 101: "nanosleep", 203: "connect", 202: "accept", 206: "sendto", 207: "recvfrom",
        211: "sendmsg", 212: "recvmsg", 260: "wait4", 25: "fcntl", 32: "flock", 82: "fsync", 83: "fdatasync",
        98: "futex", 115: "clock_nanosleep", 22: "epoll_pwait", 95: "waitid", 56: "openat", 79: "newfstatat",
        242: "accept4", 291: "statx", 426: "io_uring_enter", 449: "futex_waitv",
    },
}  # fmt: skip

_ABOUT_A_FILE = frozenset(
    {
        "read", "write", "pread64", "pwrite64", "readv", "writev", "ioctl", "connect", "accept", "accept4", "sendto",
        "recvfrom", "sendmsg", "recvmsg", "fcntl", "flock", "fsync", "fdatasync", "epoll_wait", "epoll_pwait",
    }
)  # fmt: skip


def native_threads(pid: int, limit: int = MAX_THREADS) -> list[KernelThread]:
    """The main thread first. Empty when the process is gone."""
    try:
        tids = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208 - names are all it needs
    except OSError:
        return []
    tids.sort(key=lambda tid: tid != pid)
    return [thread for tid in tids[:limit] if (thread := native_thread(pid, tid)) is not None]


def native_thread(pid: int, tid: int) -> KernelThread | None:
    """None when it is gone."""
    for _ in range(MAX_LOOKS):
        thread = _look(pid, tid)
        if thread is None or _stat(Path(f"/proc/{pid}/task/{tid}"))[1] == thread.state:
            break
    return thread


def _look(pid: int, tid: int) -> KernelThread | None:
    folder = Path(f"/proc/{pid}/task/{tid}")
    name, state = _stat(folder)
    if not state:
        return None
    missing: list[str] = []
    call = _read(folder / "syscall", missing)
    stack = _read(folder / "stack", missing)
    waits_in = _read(folder / "wchan", missing)
    return KernelThread(
        pid=pid,
        tid=tid,
        name=name,
        state=state,
        call=_call(pid, call),
        waits_in="" if waits_in == "0" else waits_in,
        stack=tuple(_function(line) for line in stack.splitlines()[:MAX_KERNEL_FRAMES]),
        why="; ".join(missing),
    )


def _stat(folder: Path) -> tuple[str, str]:
    """Name and state; empty when the thread is gone."""
    found = proc.parse_stat(proc.read_or_nothing(f"{folder}/stat"))
    return ("", "") if found is None else (found.name, found.state)


def _read(path: Path, missing: list[str]) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError as error:
        missing.append(f"{path.name}: {error.strerror or error}")
        return ""


def _call(pid: int, text: str) -> str:
    """ "0 0x3 0x7f... ..." -> "read of /data/shard-3"; empty for "running"."""
    words = text.split()
    if not words or not words[0].lstrip("-").isdigit() or words[0].startswith("-"):
        return ""
    name = _CALLS.get(platform.machine(), {}).get(int(words[0]), f"system call {words[0]}")
    if name not in _ABOUT_A_FILE or len(words) < 2:
        return name
    try:
        return f"{name} of {str(Path(f'/proc/{pid}/fd/{int(words[1], 16)}').readlink())[:200]}"
    except (OSError, ValueError):
        return name


def _function(line: str) -> str:
    """ "[<0>] nfs_wait_bit_killable+0x2a/0xa0 [nfs]" -> "nfs_wait_bit_killable [nfs]"."""
    words = line.split()[1:]
    return " ".join([words[0].partition("+")[0], *words[1:]]) if words else line
