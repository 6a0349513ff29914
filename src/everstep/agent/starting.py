"""Starts one rank: from a parked worker if there is one, from a fresh interpreter otherwise, and says which and why.

Used by `agent/node.py` for every rank of a StartWorkers. From the assignment on all workers are alike.
"""

import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from everstep.agent import environment, memory, spawn, streams
from everstep.agent.ailments import Ailments
from everstep.agent.board import Board
from everstep.agent.channel import Channel
from everstep.agent.memory import Memory
from everstep.agent.paths import Paths
from everstep.agent.pump import Pump
from everstep.agent.template import Template
from everstep.agent.versions import placing
from everstep.agent.watching.watch_link import WatchLink
from everstep.agent.workers import Group, Worker
from everstep.core.policy import Policy
from everstep.errors import EverstepError
from everstep.model.actions import StartWorkers
from everstep.model.events import WorkersFailedToStart, WorkersStarted
from everstep.model.facts import Started
from everstep.model.spec import Launch, RunSpec
from everstep.model.versions import Version
from everstep.probes.oom import KernelLog
from everstep.wire import local

TEMPLATE_WAIT_S = 60.0
"""How long ranks wait for a template that is still importing. Fresh interpreters would import the same modules once
per rank, on the same disk, so waiting is the quicker way unless the template hangs."""

_log = logging.getLogger(__name__)


class Home(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for every start on this node."""

    run: str
    run_dir: Path
    nproc: int
    max_restarts: int
    policy: Policy = Policy()
    base_env: Mapping[str, str]
    rack: str = ""  # that this node is in; empty: not known
    origin: streams.Origin = streams.Origin()
    pump: Pump = msgspec.field(default_factory=Pump)


class Starter:
    """Knows how to make workers on this node."""

    def __init__(
        self,
        home: Home,
        spec: RunSpec,
        board: Board,
        memory: Memory,
        template: Template | None,
        ailments: Ailments | None = None,
    ) -> None:
        self._home = home
        self._spec = spec
        self._board = board
        self._memory = memory
        self._template = template
        self._ailments = ailments or Ailments()
        self._log = KernelLog()

    async def prepare(self, num_ranks: int, version: Version | None = None) -> str:
        """Wait for parked workers. Empty, or why there are none."""
        why = self.why_fresh(version)
        if why or self._template is None:
            return why
        return await self._template.wait_parked(num_ranks, TEMPLATE_WAIT_S)

    def why_fresh(self, version: Version | None = None) -> str:
        """Why the template is out of the question for this program; empty if it is not."""
        if self._spec.launch is Launch.COMMAND:
            return "the program is not run by our interpreter (--no-python)"
        if self._home.base_env.get("EVERSTEP_TEMPLATE", "").lower() in {"0", "off", "no"}:
            return f"EVERSTEP_TEMPLATE={self._home.base_env['EVERSTEP_TEMPLATE']}"
        if self._python() != sys.executable:
            return f"PYTHON_EXEC={self._python()}"
        return placing.why_fresh(version)

    async def start_all(
        self, node: str, action: StartWorkers, group: Group, why: str, on_process: Callable[[int], None]
    ) -> WorkersStarted | WorkersFailedToStart:
        """All of them, or none. `why`: they are not forked from the template because of this."""
        started: list[Started] = []
        try:
            for local_rank in range(action.num_ranks):
                started.append(self.start(action, local_rank, group, why))
                on_process(started[-1].pid)
        except (EverstepError, OSError) as error:
            _log.exception("starting generation %d", action.generation)
            await group.stop(0.0)
            return WorkersFailedToStart(at=time.time(), node=node, generation=action.generation, why=str(error))
        return WorkersStarted(at=time.time(), node=node, generation=action.generation, started=tuple(started))

    def start(self, action: StartWorkers, local_rank: int, group: Group, why: str) -> Started:
        """Make one rank's process and give it its assignment. Raises EverstepError, OSError."""
        rank = action.first_rank + local_rank
        placed = placing.place(self._spec, action.version, self._home.base_env)
        paths = self._paths(action, rank, local_rank)
        spawned_at = time.time()
        self._board.reset(local_rank, rank=rank, generation=action.generation, spawned_at=spawned_at)
        parked = self._template.take() if self._template is not None and not self.why_fresh(action.version) else None
        with streams.open_streams(
            self._home.origin, self._spec, paths, local_rank=local_rank, pump=self._home.pump
        ) as standard:
            if parked is not None:
                pid, link, how, why = parked.pid, parked.link, "template", ""
            else:
                pid, link = spawn.spawn_worker(placed.env, self._python(), standard)
                how = "command" if self._spec.launch is Launch.COMMAND else "fresh"
                why = why or "no parked worker was left"
            worker = Worker(
                rank=rank, local_rank=local_rank, pid=pid, paths=paths, log=self._log, drain=self._home.pump.drain
            )
            group.add(worker, _channel_of(link))
            self._assign(action, worker, placed, standard)
        return Started(rank=rank, pid=pid, how=how, why=why, at=spawned_at)

    def _paths(self, action: StartWorkers, rank: int, local_rank: int) -> Paths:
        return Paths.prepare(
            logs=self._home.run_dir / "logs",
            errors=self._home.run_dir / "errors",
            generation=action.generation,
            rank=rank,
            is_one=streams.is_one_file(self._spec, local_rank, is_one=self._home.origin.is_one),
            published=self._published(action, local_rank),
            streams=streams.kept_streams(self._spec, local_rank),
        )

    def close(self) -> None:
        self._log.close()

    def _published(self, action: StartWorkers, local_rank: int) -> Path | None:
        if action.slot >= len(self._spec.published_logs):
            return None
        return Path(self._spec.published_logs[action.slot]) / f"attempt_{action.generation}" / str(local_rank)

    def _assign(self, action: StartWorkers, worker: Worker, placed: placing.Placed, standard: streams.Fds) -> None:
        env = environment.rank_environment(
            placed.env,
            self._spec,
            action,
            local_rank=worker.local_rank,
            run=self._home.run,
            max_restarts=self._home.max_restarts,
            error_file=worker.paths.error_file,
        )
        frame = {
            "do": "assign",
            "rank": worker.rank,
            "local_rank": worker.local_rank,
            "generation": action.generation,
            "world_size": action.world_size,
            "env": env,
            "program": placed.program,
            "args": placed.args,
            "moved": placed.moved,
            "launch": str(self._spec.launch),
            "cwd": self._spec.cwd or os.getcwd(),  # noqa: PTH109
            "streams": True,  # the first three descriptors are its 0, 1 and 2
            "error_file": str(worker.paths.error_file),
            "resume_step": action.resume_step,
            "digest_every": self._home.policy.digest_every,
            "divides": self._home.policy.divide_replicas,
            "snapshot_buffers": self._home.policy.snapshot_buffers,
            "restore_path": action.restore_path,
            "init_from": self._spec.init_from,
            "drills": self._ailments.of_process(worker.local_rank),
            "watch": self._home.policy.needs_watch_thread,  # the last descriptor is the watch thread's socket
        }
        shared = self._memory_of_others(action, worker)
        frame["siblings"] = [[rank, len(fds)] for rank, fds in shared.items()]
        fds = (
            *standard,
            self._board.fd,
            *self._memory.for_rank(worker.rank),
            *(fd for each in shared.values() for fd in each),
        )
        with contextlib.ExitStack() as cleanup:
            if self._home.policy.needs_watch_thread:
                ours, theirs = socket.socketpair()
                worker.watch = WatchLink(ours)
                fds = (*fds, cleanup.enter_context(theirs).fileno())
            is_sent = worker.channel is not None and worker.channel.send(frame, fds)
        if not is_sent:
            raise EverstepError(f"rank {worker.rank}: the new process {worker.pid} does not listen")

    def _memory_of_others(self, action: StartWorkers, worker: Worker) -> dict[int, list[int]]:
        """Of the node's other ranks: they may keep parts of this one's state. None where a frame cannot take them all;
        then nothing is divided either."""
        ranks = [r for r in range(action.first_rank, action.first_rank + action.num_ranks) if r != worker.rank]
        found = {rank: self._memory.for_rank(rank) for rank in ranks}
        return found if memory.MAX_ARENAS * action.num_ranks + 5 <= local.MAX_FDS else {}

    def _python(self) -> str:
        return self._home.base_env.get("PYTHON_EXEC") or sys.executable


def _channel_of(link: socket.socket) -> Callable[..., Channel]:
    # A closed link says nothing about the process: its end does. A program may close every descriptor it has.
    return lambda on_frame: Channel(link, on_frame, lambda _why: None)
