"""The thin runtime inside a training process: its link to the agent, its line on the board, its assignment.

`current()` is what `everstep.State` and the hooks use; it is None outside `everstep run`, and then everything
of ours is a no-op. Nothing here may raise into the user's code except `request_arena`, whose caller handles
ArenaRefused, and nothing may block on a slow agent: doorbells are sent without waiting and dropped (and
counted) if they cannot be.
"""

import collections
import os
import signal
import socket
import threading
import time
from typing import Any

from everstep.wire import local
from everstep.worker.board import BoardLine

DRILL_SIGNAL = signal.SIGRTMIN + 8
MAX_FAULT_REPORTS = 20
"""Per worker. The board goes on counting; the agent's log must not be flooded by a fault in every step."""

_ARENA_TIMEOUT_S = 30.0
"""The agent makes and sizes a memfd; far above what that takes. Longer would only hide an agent that is
stuck.
"""

_SEND_TIMEOUT_S = 2.0


class ArenaRefused(Exception):  # noqa: N818 - a refusal, not a fault
    """There is no snapshot memory to have; train on without."""

    def __init__(self, why: str, free_bytes: int | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.free_bytes = free_bytes


class Runtime:
    """One per process, made from the assignment."""

    rank: int
    local_rank: int
    world_size: int
    generation: int
    resume_step: int | None
    """Newest step that every rank holds a snapshot of; None: there is nothing to restore."""
    arenas: list[int]
    """Descriptors of this rank's snapshot memory of earlier generations, oldest first. The runtime owns them.
    """
    board: BoardLine

    def __init__(self, link: socket.socket, assignment: dict[str, Any], board: BoardLine, arenas: list[int]) -> None:
        self.rank = int(assignment["rank"])
        self.local_rank = int(assignment["local_rank"])
        self.world_size = int(assignment["world_size"])
        self.generation = int(assignment["generation"])
        self.resume_step = assignment.get("resume_step")
        self.arenas = arenas
        self.board = board
        self.known_modules: frozenset[str] = frozenset()
        self.watch_link: socket.socket | None = None
        self._link: socket.socket | None = link
        self._pid = os.getpid()
        self._reading = threading.Lock()
        self._drills: collections.deque[dict[str, Any]] = collections.deque()
        self._rung: set[str] = set()
        self._num_reported = 0
        self._watches = False

    def mark(self, name: str) -> None:
        """Reach a milestone: "entered", "rendezvous_begun", "rendezvous_done", "first_step".

        Sets the cell on the board and rings the agent, both once per generation; safe to call again.
        """
        if name in self._rung or os.getpid() != self._pid:
            return
        self._rung.add(name)
        self.board.set_mark(name, time.time())
        self._ring({"mark": name})

    def own_steps(self) -> None:
        """Steps are told by the program itself (State): the optimizer hook stops counting."""
        self.board.set_counts_own_steps()
        self._rung.discard("first_step")

    def loop_began(self) -> None:
        """The first step begins."""
        self.board.set_loop_at(time.time())

    def step_done(self, step: int) -> None:
        """Step `step` is done: board, and on the first one of this generation the doorbell and the module
        list.
        """
        if os.getpid() != self._pid:
            return  # a forked child (data loader) has the mapping too, but the line is the rank's own
        if self.board.step_done(step, time.time()):
            self.mark("first_step")
            self._tell_modules()

    def request_arena(self, num_bytes: int) -> int:
        """Ask the agent for snapshot memory of `num_bytes`; returns the descriptor, which the caller owns.

        Raises ArenaRefused, also when the agent does not answer.
        """
        link = self._link
        if link is None or os.getpid() != self._pid:
            raise ArenaRefused("the link to the agent is closed")
        try:
            with self._reading:
                link.settimeout(_ARENA_TIMEOUT_S)
                try:
                    local.send(link, {"memory": {"bytes": num_bytes}})
                    return self._await_arena(link)
                finally:
                    link.settimeout(None)
        except (OSError, local.FrameError) as error:
            self._link = None  # a frame may be cut in the middle: nothing more can be said on it
            raise ArenaRefused(f"the agent did not answer: {error}") from error
        finally:
            if self._drills:
                signal.raise_signal(DRILL_SIGNAL)

    def report_fault(self, where: str, why: str) -> None:
        """Something of ours failed and was swallowed: count it, and tell the agent. Never raises."""
        try:
            if os.getpid() != self._pid:
                return
            self.board.count_fault()
            if self._num_reported < MAX_FAULT_REPORTS:
                self._num_reported += 1
                self._ring({"fault": {"where": where, "why": why[:2000]}})
        except Exception:
            return

    def start_watch(self) -> None:
        """There are process groups: follow them from a thread of ours, once. Never raises."""
        link = self.watch_link
        if self._watches or link is None or os.getpid() != self._pid:
            return
        self._watches = True
        try:
            from everstep.worker.watch import start

            start(self.board, link)
        except Exception as error:
            self.report_fault("watch", f"{type(error).__name__}: {error}")

    def take_drill(self) -> dict[str, Any] | None:
        """The next drill that the agent asked for; called by the signal's handler on the main thread."""
        if self._reading.acquire(blocking=False):
            try:
                self._read_waiting()
            finally:
                self._reading.release()
        return self._drills.popleft() if self._drills else None

    def put_back(self, request: dict[str, Any]) -> None:
        """The drill cannot be done at this place; it is the next one again."""
        self._drills.appendleft(request)

    def _await_arena(self, link: socket.socket) -> int:
        while True:
            received = local.recv(link)
            if received is None:
                raise OSError("it closed the link")
            frame, fds = received
            if frame.get("memory") == "granted" and fds:
                return fds[0]
            if frame.get("memory") == "refused":
                raise ArenaRefused(str(frame.get("why", "no reason given")), frame.get("free_bytes"))
            self._put(frame, fds)

    def _read_waiting(self) -> None:
        """Take what has arrived on the link; frames that began to arrive are read to their end."""
        link = self._link
        while link is not None:
            try:
                if not link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                    return
                received = local.recv(link)
            except (OSError, local.FrameError):
                return
            if received is None:
                return
            self._put(*received)

    def _put(self, frame: dict[str, Any], fds: list[int]) -> None:
        for fd in fds:
            os.close(fd)
        if frame.get("do") == "drill":
            self._drills.append(frame)

    def _tell_modules(self) -> None:
        from everstep.worker.modules import importable_ahead

        try:
            names = importable_ahead(self.known_modules)
            if self._link is not None:
                self._link.settimeout(_SEND_TIMEOUT_S)
                try:
                    local.send(self._link, {"modules": names})
                finally:
                    self._link.settimeout(None)
        except OSError as error:
            self._link = None
            self.report_fault("modules", f"{type(error).__name__}: {error}")
        except Exception as error:
            self.report_fault("modules", f"{type(error).__name__}: {error}")

    def _ring(self, frame: dict[str, Any]) -> None:
        """Send a small frame without ever waiting. A kernel buffer takes such a frame whole or not at all."""
        link = self._link
        if link is None:
            return
        try:
            link.send(local.pack(frame), socket.MSG_DONTWAIT)
        except BlockingIOError:
            self.board.count_fault()
        except OSError:
            self._link = None


_current: Runtime | None = None


def current() -> Runtime | None:
    """The runtime of this process, or None outside `everstep run` and in children that the rank forked."""
    if _current is None or _current._pid != os.getpid():
        return None
    return _current


def install(runtime: Runtime) -> None:
    """Make `runtime` this process's own. Called once by the bootstrap."""
    global _current
    _current = runtime
