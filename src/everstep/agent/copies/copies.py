"""Everything about snapshots that leaves this node, or is kept here for another: one object, owned by the node.

    server      gives snapshots to other nodes and takes theirs (`checkpoint.transport`)
    shelf       what is held here for ranks of other nodes (`checkpoint.backups`)
    backing up  the newest snapshot of each rank, to the node that the controller chose
    fetching    what lies elsewhere, before ranks start
    persisting  to disk or an object store, by a process of ours

It fences by generation and ties lifetimes together; the work is done in the modules beside it. No fault in here stops a
start, a stop or the training: a copy that cannot be made is missing, and is reported as missing.
"""

import logging
import time
from collections.abc import Callable

from everstep.agent.copies.anchors import Anchors
from everstep.agent.copies.backing_up import BackingUp
from everstep.agent.copies.fetching import Fetching
from everstep.agent.copies.persisting import Persisting
from everstep.agent.copies.writer import Writer
from everstep.agent.memory import arenas
from everstep.agent.memory.arenas import Memory
from everstep.agent.processes.reaping import Reaper
from everstep.agent.ranks.starting import Home
from everstep.checkpoint import arena
from everstep.checkpoint.backups import Backups
from everstep.checkpoint.transport import Server, Tls
from everstep.model.actions import (
    CommitCheckpoint,
    PersistSnapshot,
    PlaceBackups,
    StartWorkers,
    StrikeCheckpoint,
    TrustStep,
)
from everstep.model.events import Event, RestoreFailed, WorkersFailedToStart
from everstep.model.facts import Held

_NUM_BUFFERS = 4
"""Buffers for what is held for others: the newest, the trusted one, the newest anchor, and one to write."""

CopyAction = PlaceBackups | TrustStep | PersistSnapshot | CommitCheckpoint | StrikeCheckpoint

_log = logging.getLogger(__name__)


class Copies:
    def __init__(
        self,
        node: str,
        home: Home,
        own: Memory,
        reaper: Reaper,
        *,
        report: Callable[[Event], None],
        host: str,
        key: str,
        is_private: bool = False,
        tls: Tls | None = None,
    ) -> None:
        """`key`: what agents of this run prove to each other. `is_private`: `host` is on a network that only the nodes
        of this run are on. Without that and without `tls` nothing is served beyond loopback."""
        self._node = node
        policy = home.policy
        self._memory = own
        self._world_size = 1
        self._ranks = range(0)
        self._has_peers = False  # the generation has other nodes to copy to
        self._anchors = Anchors(policy)
        self._is_backed_up = policy.backup
        self._backups = Backups(
            arenas.free_bytes,
            num_buffers=_NUM_BUFFERS,
            is_candidate=self._anchors.includes,
        )
        self._key, self._run, self._host = key, home.run, host
        self._is_private, self._tls = is_private, tls
        self._server: Server | None = None
        self._backing_up = BackingUp(own, policy, self._anchors, key, home.run, tls)
        self._fetching = Fetching(node, own, policy, key, home.run, tls)
        env = {**home.base_env, "EVERSTEP_RUN_ID": home.run}  # two runs in one folder do not mix their parts
        writer = Writer(reaper, env, home.run_dir / "nodes" / node / "persist.log")
        self._persisting = Persisting(node, own, writer, report)
        self.endpoint = ""

    async def start(self) -> None:
        """Listen. Without, other nodes can neither give nor take, and everything else works."""
        try:
            own = self._memory.own
            self._server = Server(
                self._key,
                self._backups,
                own,
                run=self._run,
                host=self._host,
                beyond_loopback=self._is_private,
                tls=self._tls,
            )
            self.endpoint = await self._server.start()
        except Exception:
            _log.exception("no snapshot server: this node's snapshots cannot be fetched, nor can it hold backups")

    def held(self) -> tuple[Held, ...]:
        """Return what is kept here for ranks of other nodes."""
        return self._backups.held()

    def backed_up_step(self, rank: int) -> int | None:
        return self._backing_up.step_of(rank)

    def let_former_go(self, now: float) -> None:
        """Drop snapshots of a former world size once they are not needed any more."""
        is_copied = self._is_backed_up and self._has_peers
        copied = not is_copied or all(self.backed_up_step(rank) is not None for rank in self._ranks)
        self._memory.let_former_go(now, are_copied=copied)

    def begin(self, action: StartWorkers) -> None:
        """A new generation: from now on what is placed, trusted or persisted is its own."""
        self._world_size = action.world_size
        self._ranks = range(action.first_rank, action.first_rank + action.num_ranks)
        self._has_peers = action.num_slots > 1
        self._anchors.begin(action.resume_step)
        self._backing_up.begin()
        self._persisting.go_back(action.resume_step)

    async def prepare(self, action: StartWorkers) -> RestoreFailed | WorkersFailedToStart | None:
        """Prepare memory before the ranks start, and after the previous ones have ended.

        It drops what will be done again, and fetches what lies elsewhere. A failure is the answer to the start: ranks
        must not resume from memory of unknown contents."""
        try:
            return await self._prepare(action)
        except Exception as error:
            _log.exception("generation %d: the memory of snapshots could not be prepared", action.generation)
            why = f"the memory of snapshots could not be prepared: {type(error).__name__}: {error}"
            return WorkersFailedToStart(at=time.time(), node=self._node, generation=action.generation, why=why)

    async def _prepare(self, action: StartWorkers) -> RestoreFailed | None:
        ranks = range(action.first_rank, action.first_rank + action.num_ranks)
        self._memory.begin(ranks, action.resume_step, action.world_size)
        if self._is_backed_up and action.num_slots > 1:
            for rank in ranks:  # ahead: where it is copied to is said only when all ranks are through
                self._memory.pin(rank, arena.PIN_SPARE, self._anchors.first)
        self._backups.invalidate_after(action.resume_step, action.generation)
        return await self._fetching.all(action)

    def do(self, action: CopyAction, lives: Callable[[], bool], *, is_current: bool, is_stopping: bool) -> None:
        """`lives`: whether some rank of this generation runs or is being started. `is_current`: the action's generation
        is the newest that this node has heard of. Raises nothing: the agent, and the ranks with it, would end."""
        try:
            self._do(action, lives, is_current, is_stopping)
        except Exception:
            _log.exception("%s was not done", type(action).__name__)

    def _do(self, action: CopyAction, lives: Callable[[], bool], is_current: bool, is_stopping: bool) -> None:
        match action:
            case PlaceBackups() if is_current and not is_stopping:
                self._backing_up.place(action, self._world_size)
            case TrustStep() if is_current:
                self._memory.trust(action.step)
                self._backups.trust(action.step)
            case PersistSnapshot():
                if is_current:
                    self._persisting.persist(action, lives)
                else:
                    self._persisting.refuse(action, f"generation {action.generation} is over on this node")
            case CommitCheckpoint():
                self._persisting.commit(action, lives)
            case StrikeCheckpoint():
                self._persisting.strike(action, lives)
            case _:
                _log.info("%s of generation %s comes too late", type(action).__name__, action.generation)

    def end_generation(self) -> None:
        """Its ranks are to be stopped. Returns at once."""
        self._backing_up.end()

    async def close(self) -> None:
        """End what is under way. Before the memory is closed."""
        await self._backing_up.close()
        await self._persisting.close()
        if self._server is not None:
            await self._server.close()
        self._backups.close()
