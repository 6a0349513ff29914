"""Starts agents, and keeps what is ready of a killed one for the next: below a line of processes that hold its twins
(agent/processes/holding.py, ADR 29).

A line has one agent at a time. When that is killed, the process above it can be the next one: it has imported what an
agent needs, and is the parent of the twins. So a line serves as many deaths as it has holders; the agent after that is
a fresh one, with a fresh line.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from everstep.engines.children import Child, Children, open_log, wait_ended
from everstep.linux.children import Ended
from everstep.wire import local
from everstep.wire.launcher_frames import BeAgent

HOLDERS = 4
"""Deaths of agents in a row that twins outlive. A holder has 1.2 MB of its own; all of them together have one copy of
what an agent has imported, 30 MB."""

UNUSED_S = 30.0
"""A line whose agent was killed is given up when no node is asked for within this time: twins need memory."""

_END_S = 2.0

OnEnd = Callable[[Child, Ended], None]


class Agents:
    """Starts them: in the place of a killed one, if there is one, or below a line of their own."""

    def __init__(self, children: Children, num_holders: int) -> None:
        self._children = children
        self._num_holders = num_holders
        self._lines: list[_Line] = []

    def start(
        self,
        node: str,
        argv: Sequence[str],
        keeper_fd: int,
        *,
        on_end: OnEnd,
        log: Path,
        pass_fds: tuple[int, ...] = (),
    ) -> Child:
        """`pass_fds`: the same ones each time. Raises OSError."""
        for line in [each for each in self._lines if each.next_pid and each.is_wanted]:
            with contextlib.suppress(OSError):
                return line.start(node, argv, keeper_fd, on_end=on_end, log=log)
        argv = [*argv, "--keeper-fd", str(keeper_fd)]
        pass_fds = (*pass_fds, keeper_fd)
        if not self._num_holders:
            return self._children.spawn(node, argv, on_end=on_end, log=log, pass_fds=pass_fds)
        line = _Line(self._children, self._num_holders, node, argv, on_end=on_end, log=log, pass_fds=pass_fds)
        self._lines.append(line)
        return line.agent

    async def keep(self, agent: Child) -> None:
        """The agent has ended: keep its line for the next one, if it can serve."""
        line = self._line_of(agent)
        if line is not None and not (line.next_pid and line.is_wanted):
            await self.forsake(agent)
        elif line is not None:
            asyncio.get_running_loop().call_later(UNUSED_S, self._give_up, line, agent)

    def renounce(self, agent: Child) -> None:
        """The agent is about to be killed, and its twins have to end with it."""
        line = self._line_of(agent)
        if line is not None:
            line.is_wanted = False

    async def forsake(self, agent: Child) -> None:
        """The agent has ended, and its twins have to end with it."""
        line = self._line_of(agent)
        if line is not None:
            await line.end()  # in the list until then: `end` has to wait for it too
            with contextlib.suppress(ValueError):
                self._lines.remove(line)

    async def end(self) -> None:
        """All lines."""
        lines, self._lines = self._lines, []
        await asyncio.gather(*(line.end() for line in lines))

    def _line_of(self, agent: Child) -> "_Line | None":
        return next((line for line in self._lines if line.agent is agent), None)

    def _give_up(self, line: "_Line", agent: Child) -> None:
        if line in self._lines and line.agent is agent:
            self._lines.remove(line)
            line.close()


class _Line:
    """The processes above one agent, and the agent."""

    def __init__(
        self,
        children: Children,
        num_holders: int,
        node: str,
        argv: Sequence[str],
        *,
        on_end: OnEnd,
        log: Path,
        pass_fds: tuple[int, ...],
    ) -> None:
        """Raises OSError."""
        self.next_pid = 0
        """The process that can be the next agent; 0: none now."""
        self.is_wanted = True
        self._reader = local.FrameReader()
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as undo, theirs:
            undo.callback(ours.close)
            argv = [*argv, "--holders-fd", str(theirs.fileno()), "--holders", str(num_holders)]
            fds = (*pass_fds, theirs.fileno())
            self._top = children.spawn(node, argv, on_end=self._on_top_end, log=log, pass_fds=fds)
            undo.pop_all()
        self.agent = self._top.below = Child(node, self._top.pid, on_end)
        self._sock: socket.socket | None = ours
        ours.setblocking(False)
        asyncio.get_running_loop().add_reader(ours.fileno(), self._receive)

    def start(self, node: str, argv: Sequence[str], keeper_fd: int, *, on_end: OnEnd, log: Path) -> Child:
        """Raises OSError; the line is of no more use then."""
        pid, self.next_pid = self.next_pid, 0
        if self._sock is None:
            raise OSError("the line has ended")
        frame: BeAgent = {"be": list(argv[argv.index("--run-dir") :]), "process": pid}
        with open_log(log) as file:
            local.send(self._sock, frame, (file.fileno(), keeper_fd))
        self.agent = self._top.below = Child(node, pid, on_end)
        return self.agent

    async def end(self) -> None:
        """From below, each one as the one below it has ended; what they had adopted comes to this process. An agent
        that SIGKILL does not end is left, without what is below it."""
        self.agent.kill_below()
        self.close()
        if not await wait_ended([self._top], _END_S):
            self._top.send(signal.SIGKILL)
            await wait_ended([self._top], _END_S)

    def close(self) -> None:
        """The lowest process that waits ends, and then those above it."""
        self.next_pid = 0
        if self._sock is not None:
            asyncio.get_running_loop().remove_reader(self._sock.fileno())
            self._sock.close()
            self._sock = None

    def _receive(self) -> None:
        while self._sock is not None:
            try:
                data, fds = local.receive(self._sock, self._reader.wanted)
                self._reader.feed(data, fds)
                received = self._reader.next() if data else None
            except BlockingIOError:
                return
            except (OSError, local.FrameError):
                data, received = b"", None
            if not data:
                self.close()  # the last of the line is the agent
            elif received is not None:
                self._take(received[0])

    def _take(self, frame: local.Frame) -> None:
        if "agent" in frame:
            self.agent.move_to(int(frame["agent"]))
        elif "ended" in frame:
            is_agent = frame["ended"] == self.agent.pid
            self.next_pid = int(frame["next"]) if is_agent else 0
            ended = Ended(pid=frame["ended"], at=frame["at"], code=frame["code"], signal=frame["signal"])
            self._note_end(ended)

    def _on_top_end(self, _: Child, ended: Ended) -> None:
        self._receive()  # what it said before
        self.close()
        self._note_end(ended)

    def _note_end(self, ended: Ended) -> None:
        if self.agent.ended is None:
            self.agent.note_end(ended)
