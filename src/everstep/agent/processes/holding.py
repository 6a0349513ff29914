"""Processes above an agent that keep its twins when it is killed: forks of its interpreter, one below the other.

Each is a child subreaper and waits for the process below it. When that one, the agent, is killed, its twins come to the
process above. This one ends everything else that the agent left, reports the end to the launcher, and waits. Asked to,
it becomes the next agent: it has imported what an agent needs, and is the twins' parent. Each death takes one of the
line; when none is left, the launcher starts an agent with a new line. A line ends from below when the launcher closes
its socket, and from above (`PR_SET_PDEATHSIG`) when the launcher, or one of the line, is killed.

Called before there is an event loop or a thread. `engines/holders.py` is the launcher's side.
"""

import argparse
import contextlib
import itertools
import os
import random
import secrets
import signal
import socket
import time
from collections.abc import Collection, Sequence
from types import FrameType

from everstep.agent.processes.mailbox import Mailbox
from everstep.linux import proc
from everstep.linux.children import Ended, take_ended, wait_for
from everstep.linux.parent import HOLDER, WARDEN, adopt_orphans, call_this, die_with_parent
from everstep.probes.tracker import LIMIT_S, is_tracker
from everstep.wire import local
from everstep.wire.launcher_frames import AgentEnded, AgentIs, Parked

CLEAR_S = 3.0
"""What an agent left has to end within this time. Otherwise the line gives up, and the launcher ends the rest: a
process in uninterruptible sleep must not keep others waiting."""

_POLL_S = 0.002
_FORWARDED = (signal.SIGTERM, signal.SIGINT)


class Line:
    """The place of one process in its line."""

    def __init__(self, link: socket.socket, parent: int) -> None:
        self.parent = parent
        self.num_above = 0
        self.ward = secrets.token_hex(16)
        """Marks what all agents of this line start: a twin outlives its agent with the mark that it has."""
        self.mailbox = Mailbox()
        self.done_fd = -1
        """For the warden of this process; -1: nobody waits for it."""
        self.parked: tuple[Parked, list[int]] = ({"twins": []}, [])
        """Twins of the agent before, with their descriptors."""
        self._link = link
        self._name = proc.read_or_nothing("/proc/self/comm").decode(errors="replace").strip()
        self._child = 0

    def descend(self, num_holders: int, argv: list[str]) -> list[str]:
        """Fork the line. Returns in the process that is the agent, now or later, with its arguments."""
        adopt_orphans()
        for _ in range(num_holders):
            done, writing = os.pipe()
            parent = os.getpid()
            try:
                child = os.fork()
            except OSError:  # a shorter line, then
                os.close(done)
                os.close(writing)
                break
            if child != 0:
                os.close(writing)
                return self._hold(child, done, argv)
            os.close(done)
            self._step_down(parent, writing)
        self._say({"agent": os.getpid()})
        return argv

    def _step_down(self, parent: int, done_fd: int) -> None:
        """This is the process below `parent`."""
        if self.done_fd >= 0:
            os.close(self.done_fd)
        self.parent, self.done_fd = parent, done_fd
        self.num_above += 1
        adopt_orphans()
        if not die_with_parent(parent):
            os._exit(0)

    def _hold(self, child: int, done: int, argv: list[str]) -> list[str]:
        """Wait until the agent below has ended; then be the next one, or end."""
        call_this(HOLDER)
        if not die_with_parent(self.parent):
            os._exit(0)
        self._child = child
        for number in _FORWARDED:
            signal.signal(number, self._forward)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        _close_keeper(argv)
        ended = self._wait()
        parked, fds = self.mailbox.take()
        spared = {twin["pid"] for twin in parked["twins"]}
        is_clean = ended.code != 0 and _clear(spared, done)  # one that ended well has ended what was to be ended
        os.close(done)
        self.parked = parked, fds
        self._say(
            {
                "ended": ended.pid,
                "at": ended.at,
                "code": ended.code,
                "signal": ended.signal,
                "next": os.getpid() if is_clean else 0,
            }
        )
        return self._become()

    def _wait(self) -> Ended:
        os.waitid(os.P_PID, self._child, os.WEXITED | os.WNOWAIT)
        child, self._child = self._child, 0  # its number may be another's once it has been waited for
        return wait_for(child)

    def _forward(self, signum: int, _: FrameType | None) -> None:
        """A signal that came before the launcher knew the agent's number."""
        if self._child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, signum)

    def _become(self) -> list[str]:
        """Wait for the arguments of the next agent."""
        frame, (log, keeper) = self._listen()
        while frame["process"] != os.getpid():
            os.close(log)
            os.close(keeper)
            frame, (log, keeper) = self._listen()
        for number in (1, 2):
            os.dup2(log, number)
        os.close(log)
        call_this(self._name)
        random.seed()
        for number in (*_FORWARDED, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        if not self.num_above:
            self._link.close()
        return [*map(str, frame["be"]), "--keeper-fd", str(keeper)]

    def _listen(self) -> tuple[local.Frame, list[int]]:
        try:
            received = local.recv(self._link)
        except (OSError, local.FrameError):
            received = None
        if received is None:
            os._exit(0)
        return received

    def _say(self, frame: AgentIs | AgentEnded) -> None:
        with contextlib.suppress(OSError):  # the launcher is gone, or does not want this line any more
            local.send(self._link, frame)


def stand_in_line(argv: Sequence[str]) -> tuple[list[str], Line | None]:
    """The arguments of the agent that this process is, and its place in a line, if it is to have one."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--holders-fd", type=int, default=-1)
    parser.add_argument("--holders", type=int, default=0)
    parser.add_argument("--parent", type=int, default=0)
    options, _ = parser.parse_known_args(argv)
    if options.holders_fd < 0:
        return list(argv), None
    link = socket.socket(fileno=options.holders_fd)
    link.set_inheritable(False)
    line = Line(link, options.parent or os.getppid())
    return line.descend(options.holders, list(argv)), line


def is_warden(pid: int) -> bool:
    found = proc.stat(pid)
    return found is not None and found.name == WARDEN


def _close_keeper(argv: Sequence[str]) -> None:
    """It is the agent's; the launcher has to see that it closes."""
    for option, value in itertools.pairwise(argv):
        if option == "--keeper-fd":
            os.close(int(value))


def _clear(spared: Collection[int], done: int) -> bool:
    """End what the agent left, but for the spared twins, and wait for its warden to do so. False: something does not
    end."""
    began = time.monotonic()
    while True:
        for _ in take_ended():
            pass
        mine = proc.children(os.getpid()) or proc.children_by_parent().get(os.getpid(), [])
        left = [pid for pid in mine if pid not in spared and not is_warden(pid)]
        if not left and _is_closed(done):
            return True
        took_s = time.monotonic() - began
        if took_s > CLEAR_S:
            return False
        for pid in left:
            if took_s > LIMIT_S or not is_tracker(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def _is_closed(pipe: int) -> bool:
    os.set_blocking(pipe, False)
    try:
        return os.read(pipe, 1) == b""
    except BlockingIOError:
        return False
