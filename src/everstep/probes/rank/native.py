"""The kernel's view of a thread: its system call, the file of that call, and where in the kernel it waits.

For ranks without a readable Python stack, and for threads in uninterruptible sleep: a debugger gets no answer there,
and the kernel's own functions show which filesystem or driver it is. It reads files of /proc only and stops no process.
Unreadable parts are left out, and `why` gives the reason. Called for evidence, never in a steady state.

It takes no native stack of user space (py-spy --native): that stops the process while its symbols are read.
"""

import os
import platform
from pathlib import Path

from everstep.analyzer.observations.records import KernelThread
from everstep.linux import proc

MAX_THREADS = 16
"""The main thread comes first; the threads of a rank beyond these are pools that wait for work."""

MAX_KERNEL_FRAMES = 12

MAX_LOOKS = 3
"""State and call are separate files, and the kernel reports the call only once the thread has left its CPU: "running"
and "in read" of two moments would be reported as one. A thread with a changed state afterwards is read again; if its
state never stays, the last reading is used."""

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
    """All threads, the main thread first. Empty if the process is gone."""
    try:
        tids = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208 - names are all it needs
    except OSError:
        return []
    tids.sort(key=lambda tid: tid != pid)
    return [thread for tid in tids[:limit] if (thread := native_thread(pid, tid)) is not None]


def native_thread(pid: int, tid: int) -> KernelThread | None:
    """One thread; None if it is gone."""
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
    """Name and state; empty if the thread is gone."""
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
