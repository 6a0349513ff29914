"""The thin runtime inside a training process: its link to the agent, its line on the board, its assignment.

`current()` is what `everstep.State` and the hooks use; it is None outside `everstep run`, and then everything
of ours is a no-op. Nothing here may raise into the user's code except `request_arena`, whose caller handles
ArenaRefused, and nothing may block on a slow agent: doorbells are sent without waiting and dropped (and
counted) if they cannot be.
"""

import collections
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from everstep.wire import local
from everstep.worker.link.hold import Hold
from everstep.worker.parking import begin
from everstep.worker.process.board import BoardLine
from everstep.worker.process.phases import Phases

if TYPE_CHECKING:
    from everstep.wire.frames import Assign, MarkName, Modules, RankTells
    from everstep.worker.parking.begin import Process

DRILL_SIGNAL = signal.SIGRTMIN + 8
MAX_FAULT_REPORTS = 20
"""Reports per worker. The board keeps counting; the agent's log must not be flooded by a fault in every step."""

MAX_TOLD_BYTES = 16 << 10
MAX_UNSENT = 64
"""Frames that wait for another thread's frame, or for room in the kernel's buffer."""

_ARENA_TIMEOUT_S = 30.0
"""Where training waits for it: the agent makes and sizes a memfd, and this is far above what little memory takes. Much
memory is asked for on a thread, which waits for as long as the agent is there."""

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
    snapshot_buffers: int
    """Copies of the state that its memory should have room for."""
    restore_path: str
    """The step is restored from this checkpoint, not from memory; empty: from memory."""
    init_from: str
    """A checkpoint to begin with when there is no step to resume from; empty: none."""
    board: BoardLine

    def __init__(self, link: socket.socket, assignment: "Assign", board: BoardLine, arenas: list[int]) -> None:
        self.process: Process | None = None
        """How this process began, where its program runs natively."""
        self.phases = Phases(board)
        self.step_hooks: list[Callable[[int], None]] = []
        """Called after each step: drills that happen between two of them, trackers, counts."""
        self._take(link, assignment, board, arenas)

    def begin_again(self, link: socket.socket, assignment: "Assign", board_fd: int, arenas: list[int]) -> None:
        """This process continues from a twin: another assignment, and nothing is left of the twin's own. Hooks hold the
        board and the phases, so those stay the same objects."""
        if self._link is not None:
            self._link.detach()  # the twin has closed it, and its number may be another's by now
        if self.watch_link is not None:
            self.watch_link.detach()
        self.board.move(board_fd, int(assignment["local_rank"]))
        self._take(link, assignment, self.board, arenas)
        self.phases.revive()

    def _take(self, link: socket.socket, assignment: "Assign", board: BoardLine, arenas: list[int]) -> None:
        self.rank = int(assignment["rank"])
        self.local_rank = int(assignment["local_rank"])
        self.world_size = int(assignment["world_size"])
        self.generation = int(assignment["generation"])
        self.resume_step = assignment.get("resume_step")
        self.arenas = arenas
        self.siblings: dict[int, list[int]] = {}
        """The same of the node's other ranks, oldest first, for reading only."""
        self.former_world = 0
        """The step is restored from the snapshots of a generation of so many ranks; 0: from this rank's own."""
        self.former: dict[int, int] = {}
        """Memory of all its ranks, for reading only."""
        nodes, least, most = assignment.get("sizes") or (1, 1, 1)
        self.num_nodes, self.least_nodes, self.most_nodes = int(nodes), int(least), int(most)
        self.divides = bool(assignment.get("divides"))
        """What all ranks of the node hold alike is kept by one of them."""
        self.snapshot_buffers = int(assignment.get("snapshot_buffers") or 2)
        self.no_snapshots = str(assignment.get("no_snapshots") or "")
        """Why this rank is to keep none; empty: it may."""
        self.restore_path = str(assignment.get("restore_path") or "")
        self.init_from = str(assignment.get("init_from") or "")
        self.are_modules_known = bool(assignment.get("knows_modules"))
        """Whether the agent knows already which modules the ranks of this run import."""
        self.born_with: list[dict[str, Any]] = list(assignment.get("drills") or ())
        """Requests of drills that this machine had before the process began."""
        self.board = board
        self.watch_link: socket.socket | None = None
        self.reading: Any = None
        """The snapshot that the rank resumes from, while it is read beside the rendezvous
        (`worker.snapshots.restoring`)."""
        # Those that a twin was set up with begin anew; the others were of its life.
        self.step_hooks = [anew() for hook in self.step_hooks if (anew := getattr(hook, "anew", None)) is not None]
        self.num_optimizer_steps = 0
        """Optimizer steps of all optimizers, since the process began."""
        self.number_hooks: list[Callable[[int, float | None, float | None], None]] = []
        """Called with step, loss and gradient norm that the program reported."""
        self.why = str(assignment.get("why") or "")
        """Why this generation was started, for people."""
        self.save_now: Callable[[float], tuple[int | None, str]] | None = None
        """Completes the snapshot of the last completed step within so many seconds, from any thread: its step, or why
        not. Set by State."""
        self.hold = Hold()
        """After which step this rank waits for its end."""
        self._link: socket.socket | None = link
        self._pid = os.getpid()
        self._reading = threading.Lock()
        self._sending = threading.RLock()  # a drill in a signal handler may answer in the middle of something
        self._unsent: collections.deque[bytes] = collections.deque(maxlen=MAX_UNSENT)
        self._drills: collections.deque[dict[str, Any]] = collections.deque()
        self._rung: set[str] = set()
        self._num_reported = 0
        self._watches = False
        self.digest_every = int(assignment.get("digest_every") or 0)
        """Steps between two digests of the parameters; 0: none."""
        self.step_in_progress: int | None = None
        """Set by State's loop; None outside of it."""
        self.is_told_steps = False
        """The program counts steps itself, with `everstep.step`: the optimizer hook does not."""
        self.is_told_work = False
        """The program reports how much work a step was: batches are not measured."""

    def mark(self, name: "MarkName") -> None:
        """Reach a milestone: "entered", "rendezvous_begun", "rendezvous_done", "first_step".

        Sets the cell on the board and rings the agent, both once per generation; safe to call again.
        """
        if name in self._rung or os.getpid() != self._pid:
            return
        self._rung.add(name)
        self.board.set_mark(name, time.time())
        self._ring({"mark": name})

    def own_steps(self) -> None:
        """Stop counting steps in the optimizer hook: the program reports its own (State)."""
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
        self.phases.step_done()
        if self.board.step_done(step, time.time()):
            self.mark("first_step")
            self._tell_modules()
        for hook in list(self.step_hooks):
            hook(step)

    def told_step(self) -> int:
        """The program says that a step is done, without State: count it. Returns its index, from 0 in a generation."""
        last = self.board.last_step
        # The first time, the optimizer's hook has counted this very step already, if the optimizer went before.
        step = 0 if last is None else last + int(self.is_told_steps)
        self.is_told_steps = True
        self.step_done(step)
        return step

    def tell(self, frame: "RankTells") -> None:
        """Send something small to the agent, or lose it: nothing waits for it."""
        if os.getpid() != self._pid:
            return
        data = local.pack(frame)
        if len(data) > MAX_TOLD_BYTES:  # the kernel might take a part of it, and nothing could be said afterwards
            self.report_fault("tell", f"a frame of {len(data)} bytes; at most {MAX_TOLD_BYTES}")
        else:
            self._send(data)

    def request_arena(self, num_bytes: int, *, is_patient: bool = False) -> int:
        """Ask the agent for snapshot memory of `num_bytes`; returns the descriptor, which the caller owns. From any
        thread; other threads do not wait for it. `is_patient`: wait for the answer without limit.

        Raises ArenaRefused, also when the agent is gone, or does not answer.
        """
        link = self._link
        if link is None or os.getpid() != self._pid:
            raise ArenaRefused("the link to the agent is closed")
        try:
            with self._reading:
                with self._sending:
                    local.send(link, {"memory": {"bytes": num_bytes}})
                return self._await_arena(link, num_bytes, None if is_patient else time.monotonic() + _ARENA_TIMEOUT_S)
        except (OSError, local.FrameError) as error:
            self._link = None  # a frame may be cut in the middle: the link is unusable
            raise ArenaRefused(f"the agent did not answer: {error}") from error
        finally:
            if self._drills:
                os.kill(self._pid, DRILL_SIGNAL)

    def report_fault(self, where: str, why: str) -> None:
        """Report a failure of ours that was swallowed: count it, and send it to the agent. Never raises."""
        try:
            if os.getpid() != self._pid:
                return
            self.board.count_fault()
            if self._num_reported < MAX_FAULT_REPORTS:
                self._num_reported += 1
                self._ring({"fault": {"where": where, "why": why[:2000]}})
        except Exception:
            return

    def let_siblings_go(self) -> None:
        """Close the memory of siblings and of the former generation: this rank has read what it begins with, and memory
        that the agent gives up must not stay for its sake."""
        for fds in self.siblings.values():
            while fds:
                os.close(fds.pop())
        while self.former:
            os.close(self.former.popitem()[1])

    def start_watch(self) -> None:
        """There are process groups: follow them from a thread of ours, once. Never raises."""
        link = self.watch_link
        if self._watches or link is None or os.getpid() != self._pid:
            return
        self._watches = True
        try:
            from everstep.worker.link.watch import start

            start(self.board, link, self)
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

    def answer_drill(self, request: Mapping[str, Any], why_not: str, *, is_armed: bool = False) -> None:
        """Report that the drill is done, or will be at the next occasion, or why it cannot be."""
        self._ring({"drilled": request.get("id"), "why": why_not[:2000], "is_armed": is_armed})

    def _await_arena(self, link: socket.socket, num_bytes: int, until: float | None) -> int:
        poll = select.poll()
        poll.register(link, select.POLLIN)
        while True:
            if not poll.poll(None if until is None else max(0.0, until - time.monotonic()) * 1000):
                raise ArenaRefused(f"the agent did not answer within {_ARENA_TIMEOUT_S:.0f} s")
            received = local.recv(link)
            if received is None:
                raise OSError("it closed the link")
            frame, fds = received
            if frame.get("memory") == "granted" and fds and frame.get("bytes", num_bytes) == num_bytes:
                return fds[0]
            if frame.get("memory") == "refused":
                raise ArenaRefused(str(frame.get("why", "no reason given")), frame.get("free_bytes"))
            self._put(frame, fds)  # also memory that was asked for before, and came too late
            if self._drills:
                os.kill(self._pid, DRILL_SIGNAL)

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
        process = self.process
        if process is None or self.are_modules_known:
            return
        try:
            from everstep.worker.parking.variables import IDENTITY
            from everstep.worker.process.modules import importable_ahead, variables_changed

            frame: Modules = {
                "modules": importable_ahead(process.known),
                "changed": variables_changed(process.env_when_parked, os.environ, IDENTITY),
                "took_s": time.monotonic() - process.parked_at if process.parked_at else 0.0,
            }
            if self._link is not None:
                with self._sending:
                    self._link.settimeout(_SEND_TIMEOUT_S)
                    try:
                        local.send(self._link, frame)
                    finally:
                        self._link.settimeout(None)
        except OSError as error:
            self._link = None
            self.report_fault("modules", f"{type(error).__name__}: {error}")
        except Exception as error:
            self.report_fault("modules", f"{type(error).__name__}: {error}")

    def _ring(self, frame: "RankTells") -> None:
        self._send(local.pack(frame))

    def _send(self, data: bytes) -> None:
        """Send a small frame without ever waiting. A kernel buffer takes such a frame whole or not at all.

        A thread that is in the middle of a frame sends those of others as well; what the kernel has no room for goes
        with the next one, and the oldest is lost when there are too many.
        """
        if len(self._unsent) == MAX_UNSENT:
            self.board.count_fault()
        self._unsent.append(data)
        while self._unsent and self._link is not None and self._sending.acquire(blocking=False):
            try:
                if not self._send_all(self._link):
                    return
            finally:
                self._sending.release()

    def _send_all(self, link: socket.socket) -> bool:
        """False: there is no room now."""
        while self._unsent:
            data = self._unsent.popleft()  # first: a signal handler may send in the middle of this
            try:
                link.send(data, socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._unsent.appendleft(data)
                return False
            except OSError:
                self._link = None
                return False
        return True


_current: Runtime | None = None


def installed() -> Runtime | None:
    """The runtime of this process, or of the one that it was forked from."""
    return _current


def current() -> Runtime | None:
    """The runtime of this process, or None outside `everstep run` and in children that the rank forked."""
    if _current is None and begin.process is not None:
        begin.process.install_early()
    if _current is None or _current._pid != os.getpid():
        return None
    return _current


def install(runtime: Runtime) -> None:
    """Make `runtime` this process's own."""
    global _current
    _current = runtime
