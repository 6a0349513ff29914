"""One node of the run: carries out the controller's commands and reports what happens here.

A flat `match` over actions; no decision is taken here. Generations fence: what belongs to an older one is dropped and
counted, what is asked for twice is answered twice and done once.
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from everstep.agent.copies import stopping
from everstep.agent.copies.copies import Copies
from everstep.agent.exams.examining import Examiner
from everstep.agent.memory.arenas import Memory
from everstep.agent.memory.board import Board
from everstep.agent.processes.ahead import Ahead
from everstep.agent.processes.ailments import Ailments
from everstep.agent.processes.reaping import Reaper
from everstep.agent.ranks import drills, entering, workers
from everstep.agent.ranks.bequest import Bequest
from everstep.agent.ranks.readiness import Readiness
from everstep.agent.ranks.starting import Home, Starter
from everstep.agent.ranks.warden import Warden
from everstep.agent.ranks.workers import Group, Worker
from everstep.agent.senses.hurry import Hurry
from everstep.agent.senses.links import Links
from everstep.agent.tracing.tracer import Tracer
from everstep.agent.versions.trial import Trials
from everstep.agent.watching import collecting
from everstep.agent.watching.kernel_views import KernelViews
from everstep.agent.watching.monitor import Monitor
from everstep.agent.watching.observing import Observing
from everstep.agent.watching.rank_frames import RankFrames
from everstep.agent.watching.slow_rounds import SlowRounds
from everstep.agent.watching.stacks import Stacks
from everstep.model import actions as act
from everstep.model import events
from everstep.model.facts import RankAccount
from everstep.model.names import own_machine_name
from everstep.model.spec import RunSpec
from everstep.wire.messages import Command

PROGRESS_S = 2.0
END_GRACE_S = 5.0

_log = logging.getLogger(__name__)


class Node:
    """The state of this node and its reactions. `report` takes events for the controller."""

    def __init__(
        self,
        node: str,
        home: Home,
        *,
        reaper: Reaper,
        warden: Warden,
        snapshots: Memory,
        copies: Copies,
        report: Callable[[events.Event], None],
        on_finish: Callable[[], None],
        links: Links | None = None,
        bequest: Bequest | None = None,
    ) -> None:
        self.node = node
        self._home = home
        self._reaper = reaper
        self._warden = warden
        self._memory = snapshots
        self._report = report
        self._on_finish = on_finish
        self._board = Board(home.nproc)
        self._monitor = Monitor(node, self._board, Stacks(reaper), self.spawn)
        self._slow_rounds = SlowRounds(node, self._board, home.policy.slow_round_s, KernelViews(reaper))
        self._observing = Observing(node, report)
        self._tracer = Tracer(node, home.run_dir, home.run, home.base_env, reaper, report)
        self._copies = copies
        self._links = links
        self._ailments = Ailments()
        self._examiner = Examiner(node, home, reaper=reaper, warden=warden, ailments=self._ailments, report=report)
        self._trials = Trials(node, home.run_dir, home.base_env, reaper, report)
        self._spec: RunSpec | None = None
        self._readiness = Readiness(node, home, reaper, warden, report=report, spawn=self.spawn, bequest=bequest)
        self._twins = self._readiness.twins
        self._frames = self._listen()
        self._starter: Starter | None = None
        self._group: Group | None = None
        self._fence = -1  # newest generation that was started or stopped here
        self._started: events.Event | None = None  # how the start of this generation ended
        self._stopped: events.WorkersStopped | None = None
        self._is_stopping = False
        self.hurry = Hurry()  # rung when a rank has died: the kernel may just have said why
        self._hurries = asyncio.Event()  # the ranks are not waited for any more, until some step
        self._task: asyncio.Task[None] | None = None  # the start or stop under way
        self._side_tasks: set[asyncio.Task[None]] = set()
        self._num_stale = 0

    def _listen(self) -> RankFrames:
        return RankFrames(self.node, self._memory, self._observing, self)

    # -- callbacks of the link ---------------------------------------------------------------------------------------

    def on_welcome(self, spec: RunSpec) -> None:
        """Connected. NodeJoined comes first; the first time, whatever is made ready ahead starts after it."""
        first = self._spec is None
        self._spec = spec
        self.report_joined()
        if self._links is not None:
            self._links.tell_again()
        if first:
            self._set_up(spec)

    def report_joined(self) -> None:
        self._report(
            events.NodeJoined(
                at=time.time(),
                node=self.node,
                host=own_machine_name(socket.gethostname()),
                pid=os.getpid(),
                generation=self._fence,
                stopped=not self._lives(),
                held=self._memory.held(),
                backups=self._copies.held(),
                endpoint=self._copies.endpoint,
                rack=self._home.rack,
                meant_for=self._home.slot,
            )
        )

    def _lives(self) -> bool:
        """A rank runs, or is being started or stopped."""
        is_busy = self._task is not None and not self._task.done()
        return is_busy or (self._group is not None and self._group.is_alive)

    def on_command(self, command: Command) -> None:
        """Carry out one command. Never raises: a fault of ours is logged, and reported where there is a form for it."""
        action: act.Action = command.action
        match action:
            case act.StartWorkers():
                self._on_start(action)
            case act.StopWorkers():
                self._on_stop(action)
            case (
                act.PlaceBackups()
                | act.TrustStep()
                | act.PersistSnapshot()
                | act.CommitCheckpoint()
                | act.StrikeCheckpoint()
            ):
                is_current = getattr(action, "generation", self._fence) == self._fence
                self._copies.do(action, self._lives, is_current=is_current, is_stopping=self._is_stopping)
            case act.ValidateUpdate() if self._spec is not None:
                self.spawn(self._trials.look(action, self._spec))
            case act.CollectEvidence():
                self.spawn(self._collect(action))
            case act.TraceRank():
                self.spawn(self._tracer.trace(action, self._group))
            case act.ExamineNode() if action.generation < self._fence:
                self._drop(action.generation, "ExamineNode")
            case act.ExamineNode():
                why_not = "ranks of the job run on this node" if self._lives() else ""
                self._examiner.take(action, why_not)
            case act.Inject():
                self.spawn(self._inject(action))
            case act.Finish():
                self._on_finish()
            case _:
                _log.warning("not for an agent: %s", type(action).__name__)

    def report_progress(self) -> None:
        """Report the periodic account, and where each worker is now, which only a live process can report."""
        group = self._group
        if group is None or not group.is_alive:
            return
        self._memory.drop_needless()
        self._copies.let_former_go(time.monotonic())
        for worker in group.workers.values():
            if worker.is_alive:
                worker.oom.refresh()
            if worker.is_native and not worker.has_begun and entering.has_surely_begun(worker):
                group.begin(worker)
        accounts = tuple(self.account(worker) for worker in group.workers.values())
        event = events.ProgressReported(at=time.time(), node=self.node, generation=group.generation, accounts=accounts)
        self._report(event)

    def report_signals(self) -> float:
        """Report what the probes see of the live ranks. Return the seconds until the next look."""
        if self._group is not None and self._group.is_alive and not self._group.is_stopping:
            self._report(self._monitor.look(self._group, time.time()))
            if news := self._monitor.take_news(time.time()):
                accounts, generation = tuple(map(self.account, news)), self._group.generation
                self._report(
                    events.MarksReported(at=time.time(), node=self.node, generation=generation, accounts=accounts)
                )
        return self._monitor.look_again_s

    def rank_of(self, pid: int) -> int | None:
        """The rank that runs, or ran last, as this process. From any thread."""
        found = list(self._group.workers.values()) if self._group is not None else []
        return next((worker.rank for worker in found if worker.pid == pid), None)

    def report_numbers(self) -> None:
        """Look for new numbers of steps from ranks, or from their logs, and report them."""
        if self._group is not None and self._group.is_alive and not self._group.is_stopping:
            self._observing.look(self._group)

    async def report_round(self, number: int) -> None:
        """When the live ranks entered their collectives, for the fail-slow vote."""
        group = self._group
        if group is None or not group.is_alive or group.is_stopping or self._spec is None:
            return
        event = await self._slow_rounds.look(group, number, self._spec.world_size, time.time())
        if (event.ranks or event.collectives) and group is self._group and not group.is_stopping:
            self._report(event)

    def ranks(self) -> Group | None:
        """The group of the newest generation here. `close` cleans up after it."""
        return self._group

    async def close(self, grace_s: float = END_GRACE_S) -> None:
        """End everything on this node."""
        self._tracer.close()
        if self._task is not None and not self._task.done():
            self._task.cancel()
        for task in self._side_tasks:
            task.cancel()
        self._readiness.close()
        if self._group is not None:
            if self._group.has_succeeded:
                self._warden.spare()
            else:
                await self._group.stop(grace_s)
        if self._links is not None:
            self._links.close()
        await self._examiner.end("the run is over")
        await self._copies.close()
        self._twins.close()
        self._slow_rounds.close()
        if self._starter is not None:
            self._starter.close()
        self._board.close()
        self._memory.close()

    # -- start and stop ----------------------------------------------------------------------------------------------

    def _set_up(self, spec: RunSpec) -> None:
        if spec.cwd:
            with contextlib.suppress(OSError):  # it is gone: what the program makes of that is its own
                os.chdir(spec.cwd)  # where programs are started; an interpreter looks up its script before we can move
        self._starter = Starter(self._home, spec, self._board, self._memory, self._twins, self._ailments)
        self._readiness.begin(spec, self._starter)

    def _on_start(self, action: act.StartWorkers) -> None:
        if action.generation < self._fence:
            self._drop(action.generation, "StartWorkers")
        elif action.generation == self._fence:
            answer = self._stopped or self._started
            if answer is not None:
                self._report(answer)
        else:
            self._fence = action.generation
            self._started, self._stopped, self._is_stopping = None, None, False
            self._copies.begin(action)
            if self._links is not None:
                self._links.begin(action.generation, action.neighbours, self._copies.endpoint)
            self._replace_task(self._start(action))

    def _on_stop(self, action: act.StopWorkers) -> None:
        if action.generation < self._fence:
            self._drop(action.generation, "StopWorkers")
        elif self._stopped is not None and action.generation == self._fence:
            self._report(self._stopped)
        elif self._is_stopping and self._task and not self._task.done() and action.generation == self._fence:
            if action.after_step is None:
                self._hurries.set()
            _log.info("generation %d is being stopped already", action.generation)
        else:
            self._fence, self._is_stopping = action.generation, True
            self._hurries.clear()
            self._replace_task(self._stop(action))

    async def _start(self, action: act.StartWorkers) -> None:
        assert self._starter is not None
        self._tracer.end("another generation starts")
        await self._examiner.end(f"generation {action.generation} starts")
        if self._group is not None and self._group.is_alive:
            await self._group.stop(0.0)  # the controller has given it up
        self._readiness.pause()
        group = Group(
            action.generation,
            reaper=self._reaper,
            frames=self._frames,
            on_exit=self._on_exit,
            twins=self._twins,
            store_port=action.store_port,
        )
        self._group = group
        self._frames.begin(group, action.world_size, action.former_world)
        failed = await self._copies.prepare(action)
        self._started = failed or await self._starter.start_all(self.node, action, group, self._warden.tell_session)
        self._report(self._started)

    async def _stop(self, action: act.StopWorkers) -> None:
        self._tracer.end("the ranks are being stopped")
        self._readiness.pause()
        self._copies.end_generation()
        await self._examiner.end(f"generation {action.generation} stops")
        group = self._group
        exits = await stopping.stop(group, self._board, action, self._hurries) if group is not None else []
        found = list(group.workers.values()) if group is not None else []
        for worker in found:
            self._warden.forget_session(worker.pid)
        mine = group is not None and group.generation == action.generation
        self._stopped = events.WorkersStopped(
            at=time.time(),
            node=self.node,
            generation=action.generation,
            exits=tuple(exits) if mine else (),
            accounts=tuple(self.account(worker) for worker in found) if mine else (),
            held=self._memory.held(),
            backups=self._copies.held(),
            num_killed=sum(worker.was_killed for worker in found) if mine else 0,
        )
        self._report(self._stopped)

    # -- the rest ----------------------------------------------------------------------------------------------------

    def _on_exit(self, worker: Worker) -> None:
        group = self._group
        if group is None or worker.exit is None:
            return
        if self._home.policy.watch_numbers:
            self._observing.end(group, worker)  # before its exit is reported: later its numbers are not used
        if not (worker.exit.succeeded or worker.exit.stopped_by_us):
            self._tracer.end(f"rank {worker.rank} has ended")
            self.hurry.ring()
        self._report(
            events.WorkerExited(
                at=worker.exit.at,
                node=self.node,
                generation=group.generation,
                exit=worker.exit,
                account=self.account(worker),
            )
        )

    async def _collect(self, action: act.CollectEvidence) -> None:
        self._report(
            await collecting.collect(action, self._group, self._home.run_dir, self._monitor.stacks, self._board)
        )

    async def _inject(self, action: act.Inject) -> None:
        failed = await drills.carry_out(action, self._group, self._fence, self._ailments)
        if failed is not None:
            self._report(failed)

    def report(self, event: events.Event) -> None:
        """To the controller."""
        self._report(event)

    def refuse_twin(self, worker: Worker, why: str) -> None:
        self._twins.refuse(worker.local_rank, why)

    def take_twin(self, worker: Worker, told: dict[str, Any], fd: int) -> None:
        group = self._group
        if group is None or group.workers.get(worker.rank) is not worker or worker.placed is None:
            os.close(fd)
            return
        if worker.stopped_at is not None:
            os.close(fd)  # a process that continues from it has received the signal, and would end as well
            self._twins.refuse(worker.local_rank, "the rank was ending when it would have left a twin")
            return
        self._twins.add(worker.local_rank, told, fd, worker.placed, worker.paths.stdout, worker.paths.stderr)

    def learn_ahead(self, told: Ahead) -> None:
        self._readiness.learn(told)

    def note_all_stepped(self) -> None:
        self._readiness.note_all_stepped()

    def account(self, worker: Worker) -> RankAccount:
        account = workers.final_account(self._board.account(worker.local_rank), worker)
        note = self._monitor.note_of(worker, time.time()) if worker.is_alive else None
        return msgspec.structs.replace(account, backed_up_step=self._copies.backed_up_step(worker.rank), note=note)

    def _drop(self, generation: int, what: str) -> None:
        self._num_stale += 1
        _log.warning(
            "%s of generation %d dropped (%d so far): here is %d", what, generation, self._num_stale, self._fence
        )

    def _replace_task(self, work: Awaitable[None]) -> None:
        """Start and stop never run at the same time: a new one takes the place of what is under way."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(_log_failure)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._side_tasks.add(task)
        task.add_done_callback(self._side_tasks.discard)
        task.add_done_callback(_log_failure)


def _log_failure(task: "asyncio.Future[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("a task failed", exc_info=task.exception())
