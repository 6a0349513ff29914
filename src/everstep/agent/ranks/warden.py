"""A process that outlives the agent by one moment: when the agent is gone, it ends whatever the agent had under it.

Workers are tied to the agent by the kernel, but what they forked themselves (data loaders) is not, and tying it would
break programs that fork in threads. The warden is a fork of the agent that waits on a pipe; when the pipe closes it
kills every process that carries the agent's mark in its environment or lives in one of its workers' sessions.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

from everstep.agent.processes.environment import WARD_VARIABLE
from everstep.probes.tracker import LIMIT_S, is_tracker

_TRACKER_POLL_S = 0.01
_PASSES = 20
"""Killing and looking again until nothing is found: a process may fork while we look."""


class Warden:
    """Made before the event loop exists, because it forks."""

    def __init__(self, ward: str) -> None:
        read_end, self._write_end = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            with contextlib.suppress(BaseException):
                _keep_watch(read_end, ward)
            os._exit(0)
        os.close(read_end)

    def tell_session(self, sid: int) -> None:
        """A worker with a session of its own exists. Workers that ended stay on the list until their number is told
        to be free: their children may live on."""
        self._say(f"+{sid}\n")

    def forget_session(self, sid: int) -> None:
        """Nothing of that session is left; its number may now belong to somebody else."""
        self._say(f"-{sid}\n")

    def spare(self) -> None:
        """The ranks ended well: what they left running goes on when the agent ends."""
        self._say("=0\n")

    def dismiss(self) -> None:
        """An orderly end: it looks once more, and ends."""
        os.close(self._write_end)

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # the warden is gone: the agent's own clean-up has to do
            os.write(self._write_end, line.encode())


def _keep_watch(read_end: int, ward: str) -> None:
    os.setsid()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    keep = {0, 1, 2, read_end}
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:  # noqa: PTH208
        if fd not in keep:
            with contextlib.suppress(OSError):
                os.close(fd)  # above all the writing end: the pipe must close with the agent
    sessions = _listen(read_end)
    if sessions is not None:
        end_all(ward, sessions)


def _listen(read_end: int) -> set[int] | None:
    """Sessions that are alive when the pipe closes; None: nothing is to be ended."""
    sessions: set[int] = set()
    is_spared = False
    rest = b""
    while True:
        data = os.read(read_end, 4096)
        if not data:
            return None if is_spared else sessions
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            is_spared |= line[:1] == b"="
            (sessions.add if line[:1] == b"+" else sessions.discard)(int(line[1:]))


def end_all(ward: str, sessions: set[int]) -> int:
    """Kill everything that belongs to the agent; how many processes that were."""
    killed: set[int] = set()
    for _ in range(_PASSES):
        found = {pid for pid in _all_pids() if pid not in killed and _belongs(pid, ward, sessions)}
        trackers = {pid for pid in found if is_tracker(pid)}
        if not found - trackers:
            break
        for pid in found - trackers:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        killed |= found - trackers
    return len(killed) + _await_trackers(ward, sessions)


def _await_trackers(ward: str, sessions: set[int]) -> int:
    """They clean up behind the dead, and end; those that do not are killed."""
    deadline = time.monotonic() + LIMIT_S
    while left := [pid for pid in _all_pids() if is_tracker(pid) and _belongs(pid, ward, sessions)]:
        if time.monotonic() > deadline:
            for pid in left:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            return len(left)
        time.sleep(_TRACKER_POLL_S)
    return 0


def _all_pids() -> list[int]:
    me = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != me]  # noqa: PTH208


def _belongs(pid: int, ward: str, sessions: set[int]) -> bool:
    try:
        if os.getsid(pid) in sessions:
            return True
        return f"{WARD_VARIABLE}={ward}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
