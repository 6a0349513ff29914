"""The wait of a quiet rank: for something outside of the job that may just be late, or for something that will never
come.

From the kernel: the system call of the main thread, the kind of its descriptor, and the end of its timer. If the rank
waits for a process of its own (a data loader, a download by another program), that process is examined instead.

Outside is what others have to provide: a socket, a file, a file lock, a timer, a person at a terminal. Not outside are
locks within the process, uninterruptible sleep, a stopped process, and devices that compute. Unreadable waits do not
count as outside either: an unseen cause does not count as an excuse.

This module looks at one thread; `rank_wait` finds out who could end a wait within the rank. It reads /proc and some
bytes of the rank's memory, without stopping it. It never touches a file of the rank, not even by stat(): its server may
be the one that does not answer, and then the agent would wait too.
"""

import os
import platform
import struct
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from everstep.analyzer.hangs.signals import WaitsOn
from everstep.linux import proc
from everstep.probes.rank import file_locks

_READ, _POLL, _SELECT, _EPOLL, _SLEEP, _FUTEX, _LOCK, _CHILD, _CONNECT = (
    "read", "poll", "select", "epoll", "sleep", "futex", "lock", "child", "connect",
)  # fmt: skip
_CALLS = {
    "x86_64": {
        **dict.fromkeys((0, 1, 17, 19, 43, 44, 45, 46, 47, 288), _READ),
        7: _POLL,
        271: _POLL,
        23: _SELECT,
        270: _SELECT,
        232: _EPOLL,
        281: _EPOLL,
        35: _SLEEP,
        230: _SLEEP,
        202: _FUTEX,
        72: _LOCK,
        73: _LOCK,
        61: _CHILD,
        247: _CHILD,
        42: _CONNECT,
    },
    "aarch64": {
        **dict.fromkeys((63, 64, 65, 67, 202, 206, 207, 211, 212, 242), _READ),
        73: _POLL,
        72: _SELECT,
        22: _EPOLL,
        101: _SLEEP,
        115: _SLEEP,
        98: _FUTEX,
        25: _LOCK,
        32: _LOCK,
        260: _CHILD,
        95: _CHILD,
        203: _CONNECT,
    },
}
"""System calls in which a thread waits, by machine; the numbers are those of the kernel's tables."""

_ABSOLUTE = 1
"""clock_nanosleep's flag: the argument is the time to wake up, not a duration. CPython uses it."""

_CLOCK_NANOSLEEP = {"x86_64": 230, "aarch64": 115}
_WITH_MILLISECONDS = {7} if platform.machine() == "x86_64" else set()
"""poll(); ppoll() has a timespec, as pselect() has."""
_WITH_MICROSECONDS = {23} if platform.machine() == "x86_64" else set()
"""select() has a timeval."""
MAX_FDS = 8
_POLLFD = struct.Struct("<ihh")
_TIMESPEC = struct.Struct("<qq")
_NOT_FILES = ("/dev/", "/proc/", "/sys/", "/memfd:", "/dmabuf:")
"""Devices, the kernel's own files, and memory: /proc/PID/fd names them like files, but they are never late."""


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """A wait. `on`: value of analyzer.hangs.signals.WaitsOn. `left_s`: seconds until a timer ends it; None: unknown.
    `holders`: processes that have the file lock it waits for."""

    what: str
    on: WaitsOn = WaitsOn.OUTSIDE
    left_s: float | None = None
    holders: tuple[int, ...] = ()


FOR_A_SOCKET = "waits for a socket"
_INSIDE = Wait(what="waits for a process of its own", on=WaitsOn.OWN)
_TIMED = Wait(what="waits with a time limit")


def _own_wait(pid: int, tid: int | None = None) -> Wait | None:
    words = _text(f"/proc/{pid}/task/{tid or pid}/syscall").split()
    if len(words) < 7 or not words[0].isdigit():
        return None  # it runs, or is not readable
    number, args = int(words[0]), [int(word, 16) for word in words[1:7]]
    match _CALLS.get(platform.machine(), {}).get(number):
        case "read":
            return _of_fd(pid, args[0])
        case "poll" | "select" | "epoll" as call:
            found = _first(_of_fd(pid, fd) for fd in _awaited(pid, call, args)[:MAX_FDS])
            left_s = _limit_s(pid, number, call, args)
            # Whatever its own processes do, it wakes up by itself.
            return found if found is not _INSIDE or left_s is None else Wait(what=_TIMED.what, left_s=left_s)
        case "sleep":
            return _of_timer(pid, number, args)
        case "futex":
            return _TIMED if args[3] else None
        case "lock":
            return _of_lock(pid, args[0])
        case "connect":
            return Wait(what="waits for a connection")
        case "child":
            return _INSIDE
        case _:
            return None


def _of_lock(pid: int, fd: int) -> Wait:
    holders = file_locks.holders_of(pid)
    held = f", held by {file_locks.called(holders)}" if holders else ""
    return Wait(what=f"waits for a lock on {_target(pid, fd)}{held}", holders=tuple(holders))


def _of_fd(pid: int, fd: int) -> Wait | None:
    target = _target(pid, fd)
    if target.startswith("pipe:"):
        return _INSIDE
    if target.startswith("socket:"):
        return Wait(what=FOR_A_SOCKET)
    if target.startswith(("/dev/pts/", "/dev/tty")):
        return Wait(what="waits for a user at a terminal")
    if not target.startswith("/") or target.startswith(_NOT_FILES):
        return None
    return Wait(what=f"waits for {target[:200]}")


def is_timed(wait: Wait) -> bool:
    """Whether it ends by itself, whatever others within the rank do."""
    return wait.what == _TIMED.what


def awaited_sockets(pid: int, tid: int) -> set[int]:
    """Inodes of the sockets of which a thread waits for any, without a time limit; empty if it waits for anything
    else besides, or if that cannot be read."""
    words = _text(f"/proc/{pid}/task/{tid}/syscall").split()
    if len(words) < 7 or not words[0].isdigit():
        return set()
    number, args = int(words[0]), [int(word, 16) for word in words[1:7]]
    call = _CALLS.get(platform.machine(), {}).get(number, "")
    if call not in (_READ, _POLL, _SELECT, _EPOLL) or _limit_s(pid, number, call, args) is not None:
        return set()
    fds = [args[0]] if call == _READ else _awaited(pid, call, args)
    targets = [_target(pid, fd) for fd in fds]
    if len(fds) > MAX_FDS or not all(target.startswith("socket:[") for target in targets):
        return set()
    return {int(target[8:-1]) for target in targets}


def _awaited(pid: int, call: str, args: list[int]) -> list[int]:
    """Descriptors of which a call waits for any; one more than `MAX_FDS` where there are more."""
    if call == _POLL:
        return _polled(pid, args)
    return _selected(pid, args) if call == _SELECT else _registered(pid, args[0])


def _limit_s(pid: int, number: int, call: str, args: list[int]) -> float | None:
    """The time limit with which the call began; None: it has none, or it cannot be read."""
    if call == _EPOLL or (call == _POLL and number in _WITH_MILLISECONDS):
        limit = args[3 if call == _EPOLL else 2] & 0xFFFFFFFF
        return None if limit >> 31 else limit / 1000
    address = {_POLL: args[2], _SELECT: args[4]}.get(call, 0)
    data = _memory(pid, address, _TIMESPEC.size) if address else b""
    if len(data) < _TIMESPEC.size:
        return None
    seconds, parts = _TIMESPEC.unpack(data)
    return float(seconds + parts / (1e6 if number in _WITH_MICROSECONDS else 1e9))


def _polled(pid: int, args: list[int]) -> list[int]:
    """Descriptors that a poll() waits for."""
    data = _memory(pid, args[0], _POLLFD.size * min(args[1], MAX_FDS + 1))
    whole = len(data) - len(data) % _POLLFD.size
    return [fd for fd, _, _ in _POLLFD.iter_unpack(data[:whole])]


def _registered(pid: int, fd: int) -> list[int]:
    """Descriptors that an event loop watches, among them those by which it wakes itself up."""
    lines = _text(f"/proc/{pid}/fdinfo/{fd}").splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith("tfd:")][: MAX_FDS + 1]


def _selected(pid: int, args: list[int]) -> list[int]:
    """Descriptors in the read set of a select()."""
    bits = int.from_bytes(_memory(pid, args[1], (min(args[0], 1024) + 7) // 8), "little")
    return [fd for fd in range(bits.bit_length()) if bits >> fd & 1][: MAX_FDS + 1]


def _first(waits: Iterable[Wait | None]) -> Wait | None:
    """The first wait for the outside, if there is one; else the first wait."""
    found = [wait for wait in waits if wait is not None]
    return next((wait for wait in found if wait.on is WaitsOn.OUTSIDE), found[0] if found else None)


def _of_timer(pid: int, number: int, args: list[int]) -> Wait | None:
    is_clock = number == _CLOCK_NANOSLEEP.get(platform.machine())
    data = _memory(pid, args[2 if is_clock else 0], _TIMESPEC.size)
    if len(data) < _TIMESPEC.size:
        return Wait(what="sleeps")
    seconds, nanoseconds = _TIMESPEC.unpack(data)
    ends_s = seconds + nanoseconds / 1e9
    if is_clock and args[1] & _ABSOLUTE:
        clock = args[0] if args[0] in (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC) else time.CLOCK_MONOTONIC
        return Wait(what="sleeps", left_s=max(0.0, ends_s - time.clock_gettime(clock)))
    return Wait(what="sleeps", left_s=ends_s)  # counted from its beginning: an upper bound


def _target(pid: int, fd: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/fd/{fd}").readlink())
    except (OSError, ValueError):
        return ""


def _memory(pid: int, address: int, size: int) -> bytes:
    """Memory of another process; empty if not readable. The process is not stopped."""
    try:
        fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.pread(fd, size, address)
    except (OSError, OverflowError):
        return b""
    finally:
        os.close(fd)


def state(pid: int) -> str:
    found = proc.stat(pid)
    return "" if found is None else found.state


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
