"""A process that outlives the agent by one moment: when the agent is gone, it ends whatever the agent had under it.

Workers are tied to the agent by the kernel, but what they forked themselves (data loaders) is not, and tying it would
break programs that fork in threads. The warden is a fork of the agent that waits at a socket; when that closes it
kills every process that carries the agent's mark in its environment or lives in one of its workers' sessions. It has
what ranks write, too: then it takes the last of it to the log files, and stays while something that ranks were to leave
running writes there.
"""

import contextlib
import logging
import os
import select
import signal
import socket
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from everstep.agent.processes.environment import WARD_VARIABLE
from everstep.agent.streams.spooled import LOOK_S, Spooled, reopened
from everstep.linux.parent import WARDEN, call_this
from everstep.probes.tracker import LIMIT_S, is_tracker

_TRACKER_POLL_S = 0.01
_PASSES = 20
"""Killing and looking again until nothing is found: a process may fork while we look."""

_MESSAGE_BYTES = 8192
_SEARCH_EVERY = 20
"""Looks, of which one is at all processes of the machine."""


class Warden:
    """Made before the event loop exists, because it forks."""

    def __init__(self, ward: str, done_fd: int = -1) -> None:
        """`done_fd`: a pipe that closes when nothing of a dead agent is left to kill; the warden's from here on."""
        theirs, self._ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            with contextlib.suppress(BaseException):
                _keep_watch(theirs, ward, done_fd)
            os._exit(0)
        theirs.close()
        if done_fd >= 0:
            os.close(done_fd)

    def tell_session(self, sid: int) -> None:
        """Report a worker with a session of its own. Ended workers stay on the list until their number is reported
        free: their children may live on."""
        self._say(f"+{sid}")

    def forget_session(self, sid: int) -> None:
        """Report that nothing of that session is left; its number may now belong to another process."""
        self._say(f"-{sid}")

    def keep_stream(self, fd: int, path: Path) -> None:
        """Memory that ranks write to, and the file that it is for."""
        self._say(f">{path}", fd)

    def spare(self) -> None:
        """Spare what the ranks left running, as they ended well: it continues when the agent ends."""
        self._say("=")

    def spare_twins(self, pids: Iterable[int]) -> None:
        """Spare these and no other twins when the agent is killed: the next agent gets them."""
        self._say("~" + " ".join(map(str, pids)))

    def dismiss(self) -> None:
        """An orderly end: it looks once more, and ends."""
        self._ours.close()

    def _say(self, text: str, *fds: int) -> None:
        with contextlib.suppress(OSError):  # the warden is gone: the agent's own clean-up has to do
            socket.send_fds(self._ours, [os.fsencode(text)], fds)


def _keep_watch(link: socket.socket, ward: str, done_fd: int) -> None:
    os.setsid()
    call_this(WARDEN)
    logging.disable()  # the agent's log is the agent's
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    keep = {0, 1, 2, link.fileno(), done_fd}
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:  # noqa: PTH208
        if fd not in keep:
            with contextlib.suppress(OSError):
                os.close(fd)  # above all the agent's end: the socket must close with the agent
    told = _Told()
    while told.listen(link):
        pass
    if not told.is_spared:
        end_all(ward, told.sessions, told.twins)
    if done_fd >= 0:
        os.close(done_fd)
    told.finish()


class _Told:
    """What the agent has said so far."""

    def __init__(self) -> None:
        self.sessions: set[int] = set()  # of workers
        self.is_spared = False
        self.twins: set[int] = set()  # that the next agent gets
        self._streams: list[Spooled] = []

    def listen(self, link: socket.socket) -> bool:
        """To one message at most. False when the agent is gone."""
        if not select.select([link], [], [], LOOK_S if self._streams else None)[0]:
            self._look()
            return True
        data, fds, _, _ = socket.recv_fds(link, _MESSAGE_BYTES, 1)
        word, rest = data[:1], data[1:]
        if word == b">":
            self._streams.append(Spooled(reopened(fds[0], os.O_RDONLY), Path(os.fsdecode(rest))))
            os.close(fds[0])
        elif word == b"=":
            self.is_spared = True
        elif word == b"~":
            self.twins = set(map(int, rest.split()))
        elif word == b"+":
            self.sessions.add(int(rest))
        elif word == b"-":
            self.sessions.discard(int(rest))
        return bool(data)

    def _look(self) -> None:
        for stream in list(self._streams):
            stream.bound()
            if not stream.has_writers():
                self._streams.remove(stream)
                stream.close()

    def finish(self) -> None:
        """Copy until all writers are gone and everything written is in the files, if they take it."""
        for stream in self._streams:
            stream.resume()
        num_looks = 0
        while self._streams:
            written = [stream for stream in self._streams if stream.has_writers()]
            if written and not self.is_spared and num_looks % _SEARCH_EVERY == 0:
                held = _held_by_the_living()
                written = [stream for stream in written if stream.identity in held]
            for stream in self._streams:
                stream.copy()
                stream.bound()
            self._streams = written
            num_looks += 1
            if written:
                time.sleep(LOOK_S)


def end_all(ward: str, sessions: set[int], spared: Collection[int] = ()) -> int:
    """Kill everything that belongs to the agent, but for `spared`; how many processes that were."""
    killed: set[int] = set(spared)
    for _ in range(_PASSES):
        found = {pid for pid in _all_pids() if pid not in killed and _belongs(pid, ward, sessions)}
        trackers = {pid for pid in found if is_tracker(pid)}
        if not found - trackers:
            break
        for pid in found - trackers:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        killed |= found - trackers
    return len(killed) - len(set(spared)) + _await_trackers(ward, sessions)


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


def _held_by_the_living() -> set[tuple[int, int]]:
    """Device and inode of what processes have open; but for those that SIGKILL has not ended yet, such a one never
    writes again, and for the agent that is about to end: it reads."""
    found = set()
    agent = os.getppid()
    for pid in _all_pids():
        if pid == agent:
            continue
        with contextlib.suppress(OSError):
            if not _is_killed(pid):
                for entry in os.scandir(f"/proc/{pid}/fd"):
                    with contextlib.suppress(OSError):
                        known = entry.stat()
                        found.add((known.st_dev, known.st_ino))
    return found


def _is_killed(pid: int) -> bool:
    """Whether a SIGKILL waits for it. Raises OSError."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    waiting = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(signals >> (signal.SIGKILL - 1) & 1 for signals in waiting)


def _belongs(pid: int, ward: str, sessions: set[int]) -> bool:
    try:
        if os.getsid(pid) in sessions:
            return True
        return f"{WARD_VARIABLE}={ward}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
