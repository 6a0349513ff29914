"""Starts one rank: from its twin if there is one, as a fresh interpreter otherwise, and says which and why.

Used by `agent/node.py` for every rank of a StartWorkers. From the assignment on all workers are alike.
"""

import asyncio
import contextlib
import functools
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from everstep.agent.memory import arenas
from everstep.agent.memory.arenas import Memory
from everstep.agent.memory.board import Board
from everstep.agent.processes import ahead, environment, spawn
from everstep.agent.processes.ailments import Ailments
from everstep.agent.processes.channel import Channel
from everstep.agent.ranks.twin import Awake
from everstep.agent.ranks.twins import Twins
from everstep.agent.ranks.watch_link import WatchLink
from everstep.agent.ranks.workers import Group, Worker
from everstep.agent.streams import streams
from everstep.agent.streams.paths import Paths
from everstep.agent.streams.spool import Spool
from everstep.agent.versions import placing
from everstep.core.state.policy import Policy
from everstep.errors import EverstepError
from everstep.journal.beside.variables import values_of
from everstep.model.actions import StartWorkers
from everstep.model.events import WorkersFailedToStart, WorkersStarted
from everstep.model.facts import Started
from everstep.model.spec import Launch, RunSpec
from everstep.model.versions import FIRST, Version
from everstep.probes.oom import KernelLog
from everstep.wire import local
from everstep.wire.frames import Assign

_MAX_WHY_CHARS = 2000

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
    slot: int | None = None  # that this node is meant for; None: any
    home: Path = Path()  # what everstep keeps on this machine beyond the run
    origin: streams.Origin = streams.Origin()
    spool: Spool = msgspec.field(default_factory=Spool)


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """What all ranks of one start have in common."""

    placed: placing.Placed
    is_native: bool
    known: ahead.Ahead | None  # what earlier runs of this program have shown


class Starter:
    """Knows how to make workers on this node."""

    def __init__(
        self,
        home: Home,
        spec: RunSpec,
        board: Board,
        memory: Memory,
        twins: Twins,
        ailments: Ailments | None = None,
    ) -> None:
        self._home = home
        self._spec = spec
        self._board = board
        self._memory = memory
        self._twins = twins
        self._ailments = ailments or Ailments()
        self._log = KernelLog()

    def why_cold(self) -> str:
        """Why twins are out of the question for this program; empty if they are not."""
        return self._why_cold(is_native=self._is_native(placing.place(self._spec, None, self._home.base_env)))

    def _why_cold(self, *, is_native: bool) -> str:
        if self._spec.launch is Launch.COMMAND:
            return "the program is not run by an interpreter (--no-python)"
        if self._home.base_env.get("EVERSTEP_TWINS", "").lower() in {"0", "off", "no"}:
            return f"EVERSTEP_TWINS={self._home.base_env['EVERSTEP_TWINS']}"
        if not is_native:
            return "the program is run by an interpreter of ours (--run-path, or a module of another version)"
        return ""

    async def start_all(
        self, node: str, action: StartWorkers, group: Group, on_process: Callable[[int], None]
    ) -> WorkersStarted | WorkersFailedToStart:
        """All of them, or none. From their twins, where there are any."""
        started: list[Started] = []
        try:
            recipe = self._recipe(action)
            envs = [self._environment(action, each, recipe.placed) for each in range(action.num_ranks)]
            woken = await self._wake(recipe, envs)
            for local_rank, (env, awake) in enumerate(zip(envs, woken, strict=True)):
                started.append(self._start(recipe, action, local_rank, group, env, awake))
                on_process(started[-1].pid)
        except (EverstepError, OSError) as error:
            _log.exception("starting generation %d", action.generation)
            await group.stop(0.0)
            return WorkersFailedToStart(at=time.time(), node=node, generation=action.generation, why=str(error))
        return WorkersStarted(at=time.time(), node=node, generation=action.generation, started=tuple(started))

    def _recipe(self, action: StartWorkers) -> Recipe:
        """Raises OSError when the values of the version's variables cannot be read."""
        version = _that_is_there(action.version)
        env = {**self._home.base_env, **values_of(self._home.run_dir, version)}
        placed = placing.place(self._spec, version, env)
        known = ahead.read(ahead.cache_path(self._home.home, self._spec.program))
        return Recipe(placed=placed, is_native=self._is_native(placed), known=known)

    async def _wake(self, recipe: Recipe, envs: Sequence[Mapping[str, str]]) -> list[Awake | str]:
        """By local rank: the process that continues from its twin, or why there is none."""
        why = self._why_cold(is_native=recipe.is_native)
        if why:
            return [why] * len(envs)
        return await asyncio.gather(*(self._twins.wake(each, recipe.placed, env) for each, env in enumerate(envs)))

    def _start(
        self,
        recipe: Recipe,
        action: StartWorkers,
        local_rank: int,
        group: Group,
        env: Mapping[str, str],
        awake: Awake | str,
    ) -> Started:
        """Make one rank's process and give it its assignment. Raises EverstepError, OSError."""
        rank = action.first_rank + local_rank
        paths = self._paths(action, rank, local_rank)
        spawned_at = time.time()
        self._board.reset(local_rank, rank=rank, generation=action.generation, spawned_at=spawned_at)
        with streams.open_streams(
            self._home.origin, self._spec, paths, local_rank=local_rank, spool=self._home.spool
        ) as standard:
            if isinstance(awake, Awake):
                pid, link, how, why = awake.pid, awake.link, "twin", awake.stage
                for fd, data in zip(standard[1:], awake.prefix.read(), strict=True):
                    os.write(fd, data)
            else:
                pid, link, how = self._start_cold(recipe, local_rank, env, standard)
                why = awake
            worker = Worker(
                rank=rank, local_rank=local_rank, pid=pid, paths=paths, log=self._log, spool=self._home.spool
            )
            worker.placed, worker.is_native = recipe.placed, recipe.is_native
            worker.on_begin = functools.partial(self._board.set_entered, local_rank)
            group.add(worker, _channel_of(link))
            is_fresh = recipe.is_native and how != "twin"  # it has its streams already
            self._assign(recipe, action, worker, env, () if is_fresh else standard)
        if recipe.is_native and how == "twin":
            group.begin(worker)
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

    def start_spare(self, local_rank: int, folder: Path) -> None:
        """A process that runs the program up to the first question who it is. Raises EverstepError, OSError."""
        placed = placing.place(self._spec, None, self._home.base_env)
        if self.why_cold():
            return
        folder.mkdir(parents=True, exist_ok=True)
        stdout, stderr = folder / f"spare-{local_rank}.stdout.log", folder / f"spare-{local_rank}.stderr.log"
        out, err = map(self._home.spool.open, (stdout, stderr))
        fds = (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), out, err)
        try:
            command = self._command(placed, local_rank)
            pid, link = spawn.spawn_program(command, placed.env, fds, is_spare=True)
        finally:
            for fd in fds:
                os.close(fd)
        self._twins.add_spare(local_rank, pid, link, placed, stdout, stderr)

    def _published(self, action: StartWorkers, local_rank: int) -> Path | None:
        if action.slot >= len(self._spec.published_logs):
            return None
        return Path(self._spec.published_logs[action.slot]) / f"attempt_{action.generation}" / str(local_rank)

    def _start_cold(
        self, recipe: Recipe, local_rank: int, env: Mapping[str, str], standard: streams.Fds
    ) -> tuple[int, socket.socket, str]:
        if recipe.is_native:
            return *spawn.spawn_program(self._command(recipe.placed, local_rank), env, standard), "fresh"
        how = "command" if self._spec.launch is Launch.COMMAND else "fresh"
        return *spawn.spawn_worker(recipe.placed.env, self._python(), standard), how

    def _is_native(self, placed: placing.Placed) -> bool:
        """An interpreter runs it as it would under torchrun, without a frame of ours."""
        launch = self._spec.launch
        return launch is Launch.SCRIPT or (launch is Launch.MODULE and placed.moved is None)

    def _command(self, placed: placing.Placed, local_rank: int) -> list[str]:
        module = ["-m"] if self._spec.launch is Launch.MODULE else []
        args = environment.filled_in(placed.args, local_rank)
        return [self._python(), "-u", *module, placed.program, *args]

    def _cwd(self) -> str:
        return self._spec.cwd or os.getcwd()  # noqa: PTH109

    def _environment(self, action: StartWorkers, local_rank: int, placed: placing.Placed) -> dict[str, str]:
        rank = action.first_rank + local_rank
        return environment.rank_environment(
            placed.env,
            self._spec,
            action,
            local_rank=local_rank,
            run=self._home.run,
            max_restarts=self._home.max_restarts,
            error_file=self._home.run_dir / "errors" / f"gen-{action.generation}" / f"rank-{rank}.json",
        )

    def close(self) -> None:
        self._log.close()

    def _assign(
        self,
        recipe: Recipe,
        action: StartWorkers,
        worker: Worker,
        env: Mapping[str, str],
        standard: tuple[int, ...],
    ) -> None:
        placed, known = recipe.placed, recipe.known
        shared, former = self._memory_of_others(action, worker), self._former(action)
        frame: Assign = {
            "do": "assign",
            "rank": worker.rank,
            "local_rank": worker.local_rank,
            "generation": action.generation,
            "world_size": action.world_size,
            "env": dict(env),
            "program": placed.program,
            "args": environment.filled_in(placed.args, worker.local_rank),
            "moved": placed.moved,
            "launch": str(self._spec.launch),
            "cwd": self._cwd(),
            "streams": bool(standard),  # the first three descriptors are its 0, 1 and 2
            "error_file": str(worker.paths.error_file),
            "early": ahead.early(known),
            "knows_modules": self._twins.ahead is not None,
            "parks_once": known is not None and known.parks_once,
            "resume_step": action.resume_step,
            "why": action.why[:_MAX_WHY_CHARS],
            "digest_every": self._home.policy.digest_every,
            "divides": self._home.policy.divide_replicas,
            "no_snapshots": action.no_snapshots,
            "snapshot_buffers": self._home.policy.snapshot_buffers,
            "restore_path": action.restore_path,
            "init_from": self._spec.init_from,
            "drills": self._ailments.of_process(worker.local_rank),
            "watch": self._home.policy.needs_watch_thread,  # the last descriptor is the watch thread's socket
            "siblings": [(rank, len(fds)) for rank, fds in shared.items()],
            "former": (action.former_world, list(former)),
            "sizes": self._sizes(action),
        }
        fds = (
            *standard,
            self._board.fd,
            *self._memory.for_rank(worker.rank),
            *(fd for each in shared.values() for fd in each),
            *former.values(),
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
        """Memory of the node's other ranks, which may keep parts of this one's state. None if a frame cannot take them
        all; then nothing is divided either."""
        ranks = [r for r in range(action.first_rank, action.first_rank + action.num_ranks) if r != worker.rank]
        found = {rank: self._memory.for_rank(rank) for rank in ranks}
        return found if arenas.MAX_ARENAS * action.num_ranks + 5 <= local.MAX_FDS else {}

    def _former(self, action: StartWorkers) -> dict[int, int]:
        """By rank of the generation that the state is spread from: the arena that holds it. Raises EverstepError."""
        found: dict[int, int] = {}
        for each in action.fetch if action.former_world else ():
            fd = self._memory.find_former(action.former_world, each.rank, each.step)
            if fd is None:
                raise EverstepError(
                    f"step {each.step} of rank {each.rank} of {action.former_world} is not here any more"
                )
            found[each.rank] = fd
        return found

    def _sizes(self, action: StartWorkers) -> tuple[int, int, int]:
        """Nodes: now, and the least and the most that there may be."""
        spec = self._spec
        bounds = (spec.min_slots, spec.max_slots) if spec.is_elastic else (action.num_slots, action.num_slots)
        return action.num_slots, *bounds

    def _python(self) -> str:
        return self._home.base_env.get("PYTHON_EXEC") or sys.executable


def _that_is_there(version: Version | None) -> Version | None:
    """What the run was started with has no copy where that could not be taken: it runs where the user has it."""
    if version is None or version.id != FIRST.id or not version.code or Path(version.code).is_dir():
        return version
    _log.warning("%s: not found. %s runs from the user's directory", version.code, version.id)
    return msgspec.structs.replace(version, code="", root="")


def _channel_of(link: socket.socket) -> Callable[..., Channel]:
    # A closed link says nothing about the process: its end does. A program may close every descriptor it has.
    return lambda on_frame: Channel(link, on_frame, lambda _why: None)
