"""The worker processes of one generation on this node: start, follow and end them, and report how they ended.

A group is used once: its ranks start together and are never replaced one by one. Everything that happens is reported to
the owner through callbacks, in the order in which it happened.
"""

import asyncio
import functools
import logging
import signal
import time
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

import msgspec

from everstep.agent.processes import error_reports as exits
from everstep.agent.processes import reaping
from everstep.agent.processes.channel import Channel
from everstep.agent.processes.reaping import Reaper
from everstep.agent.processes.report_file import SYSTEM_EXIT
from everstep.agent.ranks.last_words import LastWords
from everstep.agent.ranks.watch_link import WatchLink
from everstep.agent.streams.paths import Paths
from everstep.agent.streams.spool import Spool
from everstep.agent.versions.placing import Placed
from everstep.analyzer.rank_exit import killed_loader
from everstep.linux.children import Ended
from everstep.model.facts import Exit, RankAccount
from everstep.probes.oom import KernelLog, OomWatch
from everstep.probes.tracker import LIMIT_S, is_tracker, members_of
from everstep.probes.unkillable import Stillness, describe
from everstep.wire import local

_log = logging.getLogger(__name__)


LOOK_S = 0.5
"""How often a rank that does not end is looked at."""

WRITE_OFF_S = 60.0
"""After SIGKILL, one that still moves (it frees memory, or resets a device) is waited for so long."""


_WHOLE_S = 1.0
"""torch writes whole seconds into its error reports."""


Answers: TypeAlias = "asyncio.Queue[tuple[str, bool]]"
"""Answer of a rank that was asked for a drill: why not, and whether it is only armed."""


class Worker:
    """One rank's process, from the moment it exists."""

    def __init__(
        self,
        *,
        rank: int,
        local_rank: int,
        pid: int,
        paths: Paths,
        log: KernelLog,
        spool: Spool | None = None,
    ) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.pid = pid
        self.began_at = time.time()
        self.paths = paths
        self.last_words = LastWords(paths.stderr)
        self._spool = spool or Spool()
        self.channel: Channel | None = None
        self.watch: WatchLink | None = None
        self.drills: dict[str, Answers] = {}  # asked for and not done, by id
        self.oom = OomWatch(pid, log)
        self.ended: Ended | None = None
        self.stopped_at: float | None = None  # when it got our SIGTERM or SIGKILL
        self.was_killed = False
        self.placed: Placed | None = None
        self.is_native = False  # an interpreter runs its program, and it listens once torch has been imported
        self.has_begun = False  # the interpreter has come as far as the program
        self.on_begin: Callable[[], None] = lambda: None
        self.has_entered = False  # it listens; before, a drill's signal would find no handler
        self.has_stepped = False
        self.disk_s: float | None = None  # in uninterruptible sleep so far, by looks at it; None: not looked at yet
        self.exit: Exit | None = None
        self.left_behind = ""  # why it is not waited for, although its process exists
        self.survivors: dict[int, int | None] = {}  # of its session, as it ended, with when they began

    @property
    def is_alive(self) -> bool:
        return self.ended is None

    def send_signal(self, signum: int) -> None:
        """Send a signal, if the worker is alive: afterwards its number may belong to another process."""
        if self.is_alive:
            reaping.kill(self.pid, signum)

    def note_survivors(self) -> None:
        """It has ended and its session was killed; some of that may take time (uninterruptible sleep)."""
        self.survivors = {pid: reaping.began(pid) for pid in members_of(self.pid)}

    @property
    def has_survivors(self) -> bool:
        """Whether a process of the session is left. Only then is the session's number still its own."""
        return any(
            began is not None and reaping.began(pid) == began and reaping.session_of(pid) == self.pid
            for pid, began in self.survivors.items()
        )

    def conclude(self) -> Exit:
        """How it ended, with everything that it left behind; if that breaks a reader, the end alone."""
        assert self.ended is not None
        try:
            self.exit = self._explained(self.ended)
        except Exception:
            _log.exception("what rank %d left behind cannot be read; its end is reported without", self.rank)
            self.exit = self._bare(self.ended)
        return self.exit

    def _bare(self, ended: Ended) -> Exit:
        """What the kernel says of its end, and nothing else."""
        return Exit(
            rank=self.rank,
            at=ended.at,
            code=ended.code,
            signal=ended.signal,
            stopped_by_us=self.stopped_at is not None and (self.was_killed or ended.signal != signal.SIGKILL),
            left_behind=self.left_behind,
        )

    def _lived_at(self, at: float, ended: Ended) -> bool:
        """Whether a time that the rank wrote lies within its life: others' ends are ordered by it."""
        return self.began_at - _WHOLE_S <= at <= ended.at + _WHOLE_S

    def _explained(self, ended: Ended) -> Exit:
        error = exits.read_error(self.paths.error_file)
        if error is not None and error.at is not None and not self._lived_at(error.at, ended):
            error = msgspec.structs.replace(error, at=None if self.stopped_at is None else ended.at)
        had_failed = error is not None and (error.at is None or self.stopped_at is None or error.at < self.stopped_at)
        is_killed = ended.signal == signal.SIGKILL and not self.was_killed  # by another process, whatever we had sent
        loader = killed_loader(error)
        child = loader[0] if loader is not None and loader[1] == "Killed" else None  # no other signal is the kernel's
        oom = self.oom.evidence(child) if is_killed or child is not None else None
        self._spool.drain()
        rest = self._spool.rest(self.paths.stderr, exits.MAX_WORDS_BYTES)
        words = exits.last_words(self.paths.stderr, self.last_words.begin(ended.at), rest)
        last_output = exits.last_output(words)
        by_itself = self.stopped_at is None or had_failed or is_killed
        failed = by_itself and ended.code != 0
        is_exit = error is not None and error.kind == SYSTEM_EXIT  # says where; it is no exception of its own
        place = error.place if error is not None and is_exit and ended.code else ""
        if ended.signal is not None and not is_exit:
            place = exits.crash_place(words)
        error = None if is_exit else error
        return Exit(
            rank=self.rank,
            at=ended.at,
            code=ended.code,
            signal=ended.signal,
            error=error,
            place=place,
            oom=oom,
            # A rank that had raised before our signal was ending by itself; the signal only made it quicker.
            stopped_by_us=not by_itself,
            finding=exits.explain_end(last_output, error, rank=self.rank, at=ended.at) if failed else None,
            left_behind=self.left_behind,
            last_output=last_output,
        )


class Frames(Protocol):
    """Receives the frames of workers."""

    def take(self, worker: Worker, frame: local.Frame, fds: list[int]) -> None: ...


class Forking(Protocol):
    """Who else makes processes that come to us."""

    @property
    def is_forking(self) -> bool:
        """A process may have been forked of which we have not heard yet."""


class Group:
    """The workers of one generation."""

    def __init__(
        self,
        generation: int,
        *,
        reaper: Reaper,
        frames: Frames,
        on_exit: Callable[[Worker], None],
        twins: Forking,
        store_port: int | None = None,
    ) -> None:
        self.generation = generation
        self.store_port = store_port  # of the job's own store: a rank that waits there waits for another rank
        self.workers: dict[int, Worker] = {}
        self._reaper = reaper
        self._frames = frames
        self._on_exit = on_exit
        self._twins = twins
        self._all_ended = asyncio.Event()
        self.is_stopping = False

    @property
    def is_alive(self) -> bool:
        return any(worker.is_alive for worker in self.workers.values())

    @property
    def has_succeeded(self) -> bool:
        """Whether every rank ended by itself, and well: what they left running is the user's, and continues as under
        torchrun."""
        return not self.is_stopping and bool(self.workers) and all(map(_has_succeeded, self.workers.values()))

    def add(self, worker: Worker, channel_of: Callable[[Callable[[local.Frame, list[int]], None]], Channel]) -> None:
        """Follow a process. `channel_of` makes its channel, given the receiver of the frames."""
        self.workers[worker.rank] = worker
        worker.channel = channel_of(functools.partial(self._frames.take, worker))
        on_end = functools.partial(self._on_end, worker)
        if not self._reaper.hand_over(worker.pid, on_end):
            self._reaper.watch(worker.pid, on_end)

    def begin(self, worker: Worker) -> None:
        """Note that the worker's program runs, as its own frame would."""
        self._frames.take(worker, {"begins": worker.pid}, [])

    async def stop(self, grace_s: float, signum: int = signal.SIGTERM) -> list[Exit]:
        """End every worker: the signal, after the grace SIGKILL, then what they left running. Returns the exits that
        this caused; the exit of a rank that had ended before is reported as usual, through `on_exit`."""
        self._reaper.reap()  # workers that have ended by now did so without us
        self.is_stopping = True
        now = time.time()
        mine = [worker for worker in self.workers.values() if worker.is_alive]
        for worker in mine:
            if worker.stopped_at is None:
                worker.stopped_at = now
            worker.was_killed = worker.was_killed or signum == signal.SIGKILL
            worker.send_signal(signum)
            worker.send_signal(signal.SIGCONT)  # a stopped process hears nothing else (pytorch#192815)
        still = {worker: Stillness(worker.pid) for worker in mine}
        if not await self._wait_ended(grace_s, still):
            for worker in mine:
                if worker.is_alive:
                    worker.was_killed = True
                    worker.send_signal(signal.SIGKILL)
            await self._wait_killed(still)
        self.end_leftovers()
        return [worker.exit or worker.conclude() for worker in mine]

    def kill(self) -> None:
        """Kill every worker now. These exits are not reported: the node itself is shutting down."""
        self.is_stopping, now = True, time.time()
        for worker in self.workers.values():
            worker.stopped_at, worker.was_killed = worker.stopped_at or now, True
            worker.send_signal(signal.SIGKILL)

    def end_leftovers(self) -> None:
        """Kill what ended workers left running: their process groups, and their descendants that came to us."""
        for worker in self.workers.values():
            if worker.has_survivors:
                self._end_session(worker.pid)
        if not self.is_alive and not self._twins.is_forking:  # a worker that is being parked looks the same
            for pid in self._reaper.adopted():
                if not is_tracker(pid):
                    reaping.kill(pid, signal.SIGKILL)

    def end_leftovers_of(self, worker: Worker) -> None:
        """The same for one worker that has ended this moment; its peers may live on."""
        if self._end_session(worker.pid):
            worker.note_survivors()
        for pid in self._reaper.adopted():
            if reaping.session_of(pid) == worker.pid and not is_tracker(pid):
                reaping.kill(pid, signal.SIGKILL)

    def _end_session(self, session: int) -> bool:
        """Everything at once; where a resource tracker is among it, everything but that, which then ends by itself.
        False if there was nothing."""
        trackers = [pid for pid in self._reaper.adopted() if reaping.session_of(pid) == session and is_tracker(pid)]
        if not trackers:
            return reaping.kill_group(session)
        killed: list[int] = []
        while left := members_of(session, (*trackers, *killed)):
            for pid in left:
                reaping.kill(pid, signal.SIGKILL)
            killed += left  # what they forked meanwhile is found by the next look
        asyncio.get_running_loop().call_later(LIMIT_S, _end_trackers, trackers)
        return True

    async def _wait_ended(self, timeout_s: float, still: Mapping[Worker, Stillness]) -> bool:
        """Whether all have ended by then. The others are looked at meanwhile."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self.is_alive:
            left_s = deadline - loop.time()
            if left_s <= 0:
                return False
            self._all_ended.clear()
            try:
                async with asyncio.timeout(min(left_s, LOOK_S)):
                    await self._all_ended.wait()
            except TimeoutError:
                for each in still.values():
                    each.look()
        return True

    async def _wait_killed(self, still: Mapping[Worker, Stillness]) -> None:
        """Until all have ended, or are written off: SIGKILL can do nothing about uninterruptible sleep."""
        loop = asyncio.get_running_loop()
        latest = loop.time() + WRITE_OFF_S
        while not await self._wait_ended(2 * LOOK_S, still):
            is_late = loop.time() > latest
            for worker, each in still.items():
                if worker.is_alive and (each.look() or is_late):
                    self._write_off(worker)

    def _write_off(self, worker: Worker) -> None:
        """Continue as if it had ended. Nothing of its program runs again; its memory and its devices stay taken."""
        worker.left_behind = describe(worker.pid)
        _log.error("rank %d is left behind: SIGKILL does not end %s", worker.rank, worker.left_behind)
        if self._reaper.hand_over(worker.pid, lambda ended: _log.info("left behind, and ended now: %s", ended)):
            self._on_end(worker, Ended(pid=worker.pid, at=time.time()))

    def _on_end(self, worker: Worker, ended: Ended) -> None:
        worker.ended = ended
        if worker.channel is not None:
            try:
                worker.channel.read_now()  # its last frames, perhaps of this turn of the loop
            except Exception:  # report the exit even if its last frame was garbage
                _log.exception("what rank %d of generation %d said last", worker.rank, self.generation)
            worker.channel.close()
        if worker.watch is not None:
            worker.watch.close()
        _log.info("rank %d of generation %d ended: %s", worker.rank, self.generation, ended)
        if _has_succeeded(worker):
            worker.note_survivors()  # they are ended if the generation is: nothing old may write then
        else:
            self.end_leftovers_of(worker)
        if not self.is_alive:
            self._all_ended.set()
        if worker.stopped_at is None:
            worker.conclude()
            self._on_exit(worker)
        if not self.is_alive and not self.is_stopping and not self.has_succeeded:
            self.end_leftovers()


def _has_succeeded(worker: Worker) -> bool:
    return worker.ended is not None and worker.ended.code == 0 and worker.stopped_at is None


def _end_trackers(pids: list[int]) -> None:
    for pid in pids:
        if is_tracker(pid):
            reaping.kill(pid, signal.SIGKILL)


def final_account(account: RankAccount, worker: Worker) -> RankAccount:
    """With the time of its end, if it has ended."""
    if worker.ended is None:
        return account
    return msgspec.structs.replace(account, ended_at=worker.ended.at)
