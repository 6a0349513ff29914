"""One node of the run: carries out the controller's commands and reports what happens here.

A flat `match` over actions; no decision is taken here. Generations fence: what belongs to an older one is dropped and
counted, what is asked for twice is answered twice and done once.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from everstep.agent import collecting, drills, imports, memory, workers
from everstep.agent.board import Board
from everstep.agent.memory import Memory
from everstep.agent.monitor import Monitor
from everstep.agent.reaping import Reaper
from everstep.agent.stacks import Stacks
from everstep.agent.starting import Home, Starter
from everstep.agent.template import Template, TemplateNews, everstep_home
from everstep.agent.warden import Warden
from everstep.agent.workers import Group, Worker
from everstep.errors import EverstepError
from everstep.model import events
from everstep.model.actions import Action, CollectEvidence, Finish, Inject, StartWorkers, StopWorkers
from everstep.model.facts import RankAccount, Started
from everstep.model.spec import RunSpec
from everstep.wire import local
from everstep.wire.messages import Command

PROGRESS_S = 2.0
QUIET_S = 0.3
"""After the last rank's first step, before the template is fed and forks the next workers: not during recovery."""
LATEST_PARK_S = 5.0
"""For programs that never take a step."""
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
        report: Callable[[events.Event], None],
        on_finish: Callable[[], None],
    ) -> None:
        self.node = node
        self._home = home
        self._reaper = reaper
        self._warden = warden
        self._memory = snapshots
        self._report = report
        self._on_finish = on_finish
        self._board = Board(home.nproc)
        self._monitor = Monitor(node, self._board, Stacks(reaper), self._spawn)
        self._spec: RunSpec | None = None
        self._template: Template | None = None
        self._starter: Starter | None = None
        self._group: Group | None = None
        self._fence = -1  # newest generation that was started or stopped here
        self._started: events.WorkersStarted | None = None
        self._stopped: events.WorkersStopped | None = None
        self._task: asyncio.Task[None] | None = None  # the start or stop under way
        self._side_tasks: set[asyncio.Task[None]] = set()
        self._rung: set[int] = set()
        self._park_timer: asyncio.TimerHandle | None = None
        self._num_stale = 0

    # -- what the link tells ---------------------------------------------------------------------------------------

    def on_welcome(self, spec: RunSpec) -> None:
        """Connected. NodeJoined comes first; on the first time the template starts after it."""
        first = self._spec is None
        self._spec = spec
        self.report_joined()
        if first:
            self._set_up(spec)

    def report_joined(self) -> None:
        is_alive = self._group is not None and self._group.is_alive
        is_starting = self._task is not None and not self._task.done()
        self._report(
            events.NodeJoined(
                at=time.time(),
                node=self.node,
                host=socket.gethostname(),
                pid=os.getpid(),
                generation=self._fence,
                stopped=not is_alive and not is_starting,
                held=self._memory.held(),
            )
        )

    def on_command(self, command: Command) -> None:
        """Carry out one command. Never raises: a fault of ours is logged, and reported where there is a form for it."""
        action: Action = command.action
        match action:
            case StartWorkers():
                self._on_start(action)
            case StopWorkers():
                self._on_stop(action)
            case CollectEvidence():
                self._spawn(self._collect(action))
            case Inject():
                self._spawn(self._inject(action))
            case Finish():
                self._on_finish()
            case _:
                _log.warning("not for an agent: %s", type(action).__name__)

    def report_progress(self) -> None:
        """The periodic account; also where the worker lives now, which only a live process tells."""
        group = self._group
        if group is None or not group.is_alive:
            return
        self._memory.drop_needless()
        for worker in group.workers.values():
            if worker.is_alive:
                worker.oom.refresh()
        accounts = tuple(self._account(worker) for worker in group.workers.values())
        event = events.ProgressReported(at=time.time(), node=self.node, generation=group.generation, accounts=accounts)
        self._report(event)

    def report_signals(self) -> None:
        """What the probes see of the live ranks."""
        if self._group is not None and self._group.is_alive and not self._group.is_stopping:
            self._report(self._monitor.look(self._group, time.time()))

    async def close(self, grace_s: float = END_GRACE_S) -> None:
        """End everything on this node."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
        for task in self._side_tasks:
            task.cancel()
        if self._park_timer is not None:
            self._park_timer.cancel()
        if self._group is not None:
            await self._group.stop(grace_s)
        if self._template is not None:
            self._template.close()
        if self._starter is not None:
            self._starter.close()
        self._board.close()
        self._memory.close()

    # -- start and stop ----------------------------------------------------------------------------------------------

    def _set_up(self, spec: RunSpec) -> None:
        self._starter = Starter(self._home, spec, self._board, self._memory, None)
        why = self._starter.why_fresh()
        if why:
            self._on_template_news(TemplateNews(usable=False, why=why))
            return
        self._template = Template(
            env=self._home.base_env,
            log_path=self._home.run_dir / "nodes" / self.node / "template.log",
            cache=imports.cache_path(everstep_home(), spec.program),
            reaper=self._reaper,
            on_news=self._on_template_news,
        )
        self._starter = Starter(self._home, spec, self._board, self._memory, self._template)
        self._template.start()
        self._template.park(self._home.nproc)

    def _on_start(self, action: StartWorkers) -> None:
        if action.generation < self._fence:
            self._drop(action.generation, "StartWorkers")
        elif action.generation == self._fence:
            answer = self._stopped or self._started
            if answer is not None:
                self._report(answer)
        else:
            self._fence = action.generation
            self._started = self._stopped = None
            self._replace_task(self._start(action))

    def _on_stop(self, action: StopWorkers) -> None:
        if action.generation < self._fence:
            self._drop(action.generation, "StopWorkers")
        elif self._stopped is not None and action.generation == self._fence:
            self._report(self._stopped)
        elif self._group is not None and self._group.is_stopping and self._task and not self._task.done():
            _log.info("generation %d is being stopped already", action.generation)
        else:
            self._fence = action.generation
            self._replace_task(self._stop(action))

    async def _start(self, action: StartWorkers) -> None:
        assert self._starter is not None
        if self._group is not None and self._group.is_alive:
            await self._group.stop(0.0)  # the controller has given it up
        self._cancel_parking()
        group = Group(
            action.generation,
            reaper=self._reaper,
            on_frame=self._on_frame,
            on_exit=self._on_exit,
            is_parking=self._template.is_parking if self._template is not None else lambda: False,
        )
        self._group = group
        why = await self._starter.prepare(action.num_ranks)
        started: list[Started] = []
        try:
            for local_rank in range(action.num_ranks):
                started.append(self._starter.start(action, local_rank, group, why))
                self._warden.tell_session(started[-1].pid)
        except (EverstepError, OSError) as error:
            _log.exception("starting generation %d", action.generation)
            await group.stop(0.0)
            failed = events.WorkersFailedToStart(
                at=time.time(), node=self.node, generation=action.generation, why=str(error)
            )
            self._report(failed)
            return
        self._started = events.WorkersStarted(
            at=time.time(), node=self.node, generation=action.generation, started=tuple(started)
        )
        self._report(self._started)
        loop = asyncio.get_running_loop()
        self._park_timer = loop.call_later(LATEST_PARK_S, self._feed_template)

    async def _stop(self, action: StopWorkers) -> None:
        self._cancel_parking()
        group = self._group
        exits = await group.stop(action.grace_s) if group is not None else []
        found = list(group.workers.values()) if group is not None else []
        for worker in found:
            self._warden.forget_session(worker.pid)
        mine = group is not None and group.generation == action.generation
        self._stopped = events.WorkersStopped(
            at=time.time(),
            node=self.node,
            generation=action.generation,
            exits=tuple(exits) if mine else (),
            accounts=tuple(self._account(worker) for worker in found) if mine else (),
            held=self._memory.held(),
            num_killed=sum(worker.was_killed for worker in found) if mine else 0,
        )
        self._report(self._stopped)

    # -- what workers tell -------------------------------------------------------------------------------------------

    def _on_frame(self, worker: Worker, frame: local.Frame, fds: list[int]) -> None:
        for fd in fds:
            os.close(fd)  # workers have none to give
        try:
            if "mark" in frame:
                worker.has_entered = True
                self._ring(worker)
            elif "modules" in frame:
                self._on_modules(worker, frame["modules"])
            elif "memory" in frame:
                self._spawn(self._grant(worker, int(frame["memory"]["bytes"])))
            elif "fault" in frame:
                self._on_fault(worker, str(frame["fault"]["where"]), str(frame["fault"]["why"]))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            _log.warning("rank %d: frame not understood: %s: %s", worker.rank, type(error).__name__, error)

    def _ring(self, worker: Worker) -> None:
        """Marks of one loop turn go together: ranks reach them at about the same time."""
        if not self._rung:
            asyncio.get_running_loop().call_soon(self._report_marks)
        self._rung.add(worker.rank)

    def _report_marks(self) -> None:
        rung, self._rung = self._rung, set()
        group = self._group
        if group is None:
            return
        present = [group.workers[rank] for rank in sorted(rung) if rank in group.workers]
        accounts = tuple(self._account(worker) for worker in present)
        if accounts:
            event = events.MarksReported(at=time.time(), node=self.node, generation=group.generation, accounts=accounts)
            self._report(event)
        for worker, account in zip(present, accounts, strict=True):
            worker.has_stepped |= account.first_step is not None
        if group.workers and all(worker.has_stepped for worker in group.workers.values()):
            self._cancel_parking()
            self._park_timer = asyncio.get_running_loop().call_later(QUIET_S, self._feed_template)

    def _on_modules(self, worker: Worker, names: object) -> None:
        if self._template is not None and isinstance(names, list):
            self._template.learn(names)

    def _on_fault(self, worker: Worker, where: str, why: str) -> None:
        self._report(
            events.RuntimeFaulted(
                at=time.time(),
                node=self.node,
                rank=worker.rank,
                generation=self._group.generation if self._group is not None else -1,
                where=where,
                why=why,
            )
        )

    async def _grant(self, worker: Worker, num_bytes: int) -> None:
        """Memory for snapshots, or the reason why not."""
        world_size = self._spec.world_size if self._spec is not None else 1
        try:
            fd = await asyncio.to_thread(memory.make, num_bytes, worker.rank, world_size)
        except memory.ArenaRefusal as refusal:
            if worker.channel is not None:
                worker.channel.send({"memory": "refused", "why": refusal.why, "free_bytes": refusal.free_bytes})
            self._report(
                events.SnapshotsRefused(
                    at=time.time(),
                    node=self.node,
                    rank=worker.rank,
                    generation=self._group.generation if self._group is not None else -1,
                    needed_bytes=num_bytes,
                    free_bytes=refusal.free_bytes,
                    why=refusal.why,
                )
            )
            return
        self._memory.add(worker.rank, fd)
        if worker.channel is not None:
            worker.channel.send({"memory": "granted", "bytes": num_bytes}, (fd,))

    def _on_exit(self, worker: Worker) -> None:
        group = self._group
        if group is None or worker.exit is None:
            return
        self._report(
            events.WorkerExited(
                at=worker.exit.at,
                node=self.node,
                generation=group.generation,
                exit=worker.exit,
                account=self._account(worker),
            )
        )

    # -- the rest ----------------------------------------------------------------------------------------------------

    async def _collect(self, action: CollectEvidence) -> None:
        self._report(await collecting.collect(action, self._group, self._home.run_dir, self._monitor.stacks))

    async def _inject(self, action: Inject) -> None:
        worker = self._group.workers.get(action.rank) if self._group and action.rank is not None else None
        try:
            if action.generation not in (-1, self._fence):
                raise drills.DrillRefused(f"generation {action.generation} is over")
            await drills.inject(action.kind, worker)
        except drills.DrillRefused as refused:
            self._report(events.DrillFailed(at=time.time(), drill=action.drill, why=str(refused)))

    def _on_template_news(self, news: TemplateNews) -> None:
        _log.info("template: %s", news)
        self._report(events.TemplateReported(at=time.time(), node=self.node, **msgspec.structs.asdict(news)))

    def _feed_template(self) -> None:
        self._park_timer = None
        if self._template is not None:
            self._template.refresh(self._home.nproc)

    def _cancel_parking(self) -> None:
        if self._park_timer is not None:
            self._park_timer.cancel()
            self._park_timer = None

    def _account(self, worker: Worker) -> RankAccount:
        return workers.final_account(self._board.account(worker.local_rank), worker)

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

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._side_tasks.add(task)
        task.add_done_callback(self._side_tasks.discard)
        task.add_done_callback(_log_failure)


def _log_failure(task: "asyncio.Future[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("a task failed", exc_info=task.exception())
