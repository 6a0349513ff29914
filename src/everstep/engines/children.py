"""The launcher's processes: started in sessions of their own, waited for, and none left behind.

The launcher is a child subreaper, so whatever a dead agent leaves (a data loader's process, a daemon that a training
script made) becomes its child and is ended here. It knows nothing about what the processes do.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from everstep.linux import proc
from everstep.linux.children import Ended, take_ended
from everstep.linux.parent import WARDEN, adopt_orphans
from everstep.probes.process import descendants
from everstep.probes.tracker import LIMIT_S, is_tracker
from everstep.probes.unkillable import Stillness, describe

MARK = b"EVERSTEP_WARD="
"""Variable that marks everything that an agent starts (agent/processes/environment.py)."""

_ORPHAN_POLL_S = 0.005
_LOOK_S = 0.25
_MAX_BELOW = 4096


class Child:
    def __init__(
        self,
        name: str,
        pid: int,
        on_end: Callable[["Child", Ended], None],
        process: "subprocess.Popen[bytes] | None" = None,
    ) -> None:
        """`process`: as it was started; None: another one is its parent, and says when it has ended."""
        self.name = name
        self.pid = pid
        self.started_at = time.time()
        self.ended: Ended | None = None
        self.below: Child | None = None
        """A process that this one holds: gets the signals that this one gets."""
        self._process = process
        self._on_end = on_end
        self._stillness = Stillness(self.pid)

    def move_to(self, pid: int) -> None:
        """It turns out to be this process."""
        self.pid, self._stillness = pid, Stillness(pid)

    @property
    def is_stuck(self) -> bool:
        """Whether it takes no signal, and has not moved for a while. To be asked now and then."""
        return self.ended is None and self._stillness.look()

    def send(self, number: int) -> None:
        """A signal, if it still runs. It was not waited for then, so the id is its own."""
        if self.below is not None:
            self.below.send(number)
        if self.ended is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill_below(self) -> None:
        """Kill its descendants: a process that does not exit does not end them itself."""
        killed: set[int] = set()
        while self.ended is None and (found := set(descendants(self.pid, _MAX_BELOW)) - killed):
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed |= found  # what they forked meanwhile is found by the next look

    def note_end(self, ended: Ended) -> None:
        self.ended = ended
        if self._process is not None:
            self._process.returncode = -ended.signal if ended.signal is not None else ended.code or 0
        self._on_end(self, ended)


class Children:
    """Owns all children of this process but those that were there before (a shell's, when it was `exec`ed)."""

    def __init__(self) -> None:
        adopt_orphans()
        self._foreign = set(_children_of_this())
        self._pid = os.getpid()
        self._own: dict[int, Child] = {}
        self._orphans: dict[int, Stillness] = {}  # that were killed, and have not ended yet
        self.left_behind: dict[int, str] = {}
        """Processes that SIGKILL does not end, and what holds them. They are not waited for again."""

    def start_reaping(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_signal_handler(signal.SIGCHLD, self.reap)

    def spawn(
        self,
        name: str,
        argv: Sequence[str],
        *,
        on_end: Callable[[Child, Ended], None],
        log: Path | None = None,
        pass_fds: tuple[int, ...] = (),
    ) -> Child:
        """Output into `log`; without one, stdout and stderr are the launcher's stderr. Raises OSError."""
        with contextlib.ExitStack() as stack:
            out = 2 if log is None else stack.enter_context(open_log(log)).fileno()
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                pass_fds=pass_fds,
                start_new_session=True,
            )
        child = Child(name, process.pid, on_end, process)
        self._own[child.pid] = child
        return child

    def reap(self) -> None:
        """Wait for everything that has ended; adopted processes too."""
        for ended in take_ended():
            self._foreign.discard(ended.pid)
            self._orphans.pop(ended.pid, None)
            self.left_behind.pop(ended.pid, None)
            child = self._own.pop(ended.pid, None)
            if child is not None:
                child.note_end(ended)

    def orphans(self) -> list[int]:
        """Processes that a dead agent left, but for its warden. As process 1 of a container this one is also given what
        others leave there (`docker exec`), so only those with an agent's mark are ours."""
        known = self._own.keys() | self._foreign | self.left_behind.keys()
        found = [pid for pid in _children_of_this() if pid not in known and not _is_warden(pid)]
        return found if self._pid != 1 else [pid for pid in found if _is_marked(pid)]

    async def end_orphans(self, limit_s: float = 5.0) -> bool:
        """Kill them, and what they leave in turn. False when some process does not go: it is left behind then."""
        began = time.monotonic()
        next_look = began
        while orphans := self.orphans():
            now = time.monotonic()
            for pid in orphans:
                if now - began < LIMIT_S and is_tracker(pid):
                    continue
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if now >= next_look:
                next_look = now + _LOOK_S
                self._leave_behind(orphans, is_late=now - began > limit_s)
            await asyncio.sleep(_ORPHAN_POLL_S)
            self.reap()
        return not self.left_behind

    async def wait_for_wardens(self, limit_s: float = 5.0) -> None:
        """Wait for the wardens of agents that have ended: the last output of their ranks is in the log files then."""
        deadline = time.monotonic() + limit_s
        while any(map(_is_warden, _children_of_this())) and time.monotonic() < deadline:
            await asyncio.sleep(_ORPHAN_POLL_S)
            self.reap()

    def _leave_behind(self, orphans: Sequence[int], *, is_late: bool) -> None:
        for pid in orphans:
            stillness = self._orphans.setdefault(pid, Stillness(pid))
            if stillness.look() or is_late:
                self.left_behind[pid] = describe(pid)
                self._orphans.pop(pid, None)

    def note_unended(self) -> None:
        """Note our own children that were killed and are still there, and end what is below them."""
        for child in self._own.values():
            self.left_behind[child.pid] = describe(child.pid)
            child.kill_below()

    def wake_all(self) -> None:
        """Continue children that were stopped (SIGSTOP)."""
        for child in list(self._own.values()):
            child.send(signal.SIGCONT)

    def kill_all(self) -> None:
        """By force, without waiting."""
        for child in list(self._own.values()):
            child.send(signal.SIGKILL)


async def wait_ended(children: Sequence[Child], limit_s: float) -> bool:
    """Whether all of them ended in time. Those that cannot are not waited for."""
    deadline = time.monotonic() + limit_s
    next_look = 0.0
    while left := [child for child in children if child.ended is None]:
        now = time.monotonic()
        if now >= next_look:
            next_look = now + _LOOK_S
            are_stuck = [child.is_stuck for child in left]  # each is looked at
            if all(are_stuck):
                return False
        if now > deadline:
            return False
        await asyncio.sleep(_ORPHAN_POLL_S)
    return True


def _is_marked(pid: int) -> bool:
    """Whether it, or what it was forked from, was started by an agent. One that has ended already is waited for."""
    try:
        return b"\0" + MARK in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _is_warden(pid: int) -> bool:
    found = proc.stat(pid)
    return found is not None and found.name == WARDEN


def _children_of_this() -> list[int]:
    return proc.children(os.getpid()) or proc.children_by_parent().get(os.getpid(), [])


def open_log(path: Path) -> BinaryIO:
    """For what a process writes to its stdout and stderr. Raises OSError."""
    return open(path, "ab", opener=_private)


def _private(path: str, flags: int) -> int:
    """For this user alone, and never through a link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
