"""Gets snapshots of this node's ranks from other nodes before the ranks start: memory to memory, all at once.

Either every rank has what it was promised afterwards, or the start is given up with the reason.
Called by the node's `Copies` for a StartWorkers that names what to fetch.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable

from everstep.agent.memory import arenas
from everstep.agent.memory.arenas import Memory
from everstep.checkpoint import arena
from everstep.checkpoint.transport import Tls, TransferError, fetch
from everstep.core.state.policy import Policy
from everstep.model.actions import StartWorkers
from everstep.model.events import RestoreFailed
from everstep.model.facts import Fetch

SPARE_SHARE = 16
"""A state may grow by a sixteenth and still fit, as when the rank asks for memory itself."""

_UNHURRIED = 4

_log = logging.getLogger(__name__)


class Fetching:
    def __init__(self, node: str, memory: Memory, policy: Policy, token: str, run: str, tls: Tls | None = None) -> None:
        self._node = node
        self._memory = memory
        self._policy = policy
        self._token = token
        self._run = run
        self._tls = tls
        self._making = threading.Lock()
        self._promised_bytes = 0  # of this start, and not yet taken

    async def all(self, action: StartWorkers) -> RestoreFailed | None:
        """None when everything is here."""
        if not action.fetch:
            return None
        self._promised_bytes = 0
        began = time.monotonic()
        tasks = {
            asyncio.create_task(self._fetch(each, action.world_size, action.former_world)): each
            for each in action.fetch
            if not action.former_world or self._memory.find_former(action.former_world, each.rank, each.step) is None
        }
        if not tasks:
            return None
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        failed = next(((task, each) for task, each in tasks.items() if _failure(task) is not None), None)
        if failed is not None:
            return self._failed(action, failed[1], _failure(failed[0]))
        _log.info("%d snapshots fetched in %.3f s", len(tasks), time.monotonic() - began)
        return None

    async def _fetch(self, wanted: Fetch, world_size: int, former_world: int) -> None:
        """Raises TransferError, arenas.ArenaRefusal."""
        if former_world:
            fd = await self._get(wanted, lambda size: self._make_former(wanted.rank, former_world, size))
            self._memory.add_former(fd)
            return
        fd = await self._get(wanted, lambda size: self._make(wanted.rank, world_size, size))
        # The copy that lies here, if one does, was not good enough: the rank must not take it.
        for known in self._memory.arenas_of(wanted.rank):
            arena.invalidate_after(known, wanted.step - 1)
        self._memory.add(wanted.rank, fd)
        ours = os.dup(fd)
        threading.Thread(target=_allocate, args=(ours,), name="arena", daemon=True).start()

    async def _get(self, wanted: Fetch, make_arena: Callable[[int], int]) -> int:
        """Raises TransferError, arenas.ArenaRefusal."""
        return await fetch(
            wanted.endpoint,
            self._token,
            rank=wanted.rank,
            step=wanted.step,
            make_arena=make_arena,
            run=self._run,
            tls=self._tls,
        )

    def _make_former(self, rank: int, world_size: int, capacity_bytes: int) -> int:
        """Memory for one snapshot, to be read once. Raises arenas.ArenaRefusal."""
        num_bytes = arena.arena_bytes(capacity_bytes, arena.NUM_BUFFERS)
        return arenas.make(num_bytes, rank, world_size, arena.NUM_BUFFERS, 1)

    def _make(self, rank: int, world_size: int, capacity_bytes: int) -> int:
        """Memory for the one snapshot that is awaited, and room for the others, which the rank will write: ranks start
        while that is being made. In a thread. Raises arenas.ArenaRefusal."""
        room = capacity_bytes + capacity_bytes // SPARE_SHARE
        with self._making:
            for num_buffers in dict.fromkeys((self._num_buffers, arena.NUM_BUFFERS)):
                num_bytes = arena.arena_bytes(room, num_buffers)
                try:
                    fd = arenas.make(num_bytes, rank, world_size, num_buffers, 1, self._promised_bytes)
                except arenas.ArenaRefusal:
                    if num_buffers == arena.NUM_BUFFERS:
                        raise
                    continue
                self._promised_bytes += num_bytes - num_bytes // num_buffers
                return fd
        raise AssertionError("the least is made or refused")

    @property
    def _num_buffers(self) -> int:
        """The number of buffers that the rank would ask for: with enough of them the one before the newest stays,
        too."""
        wanted = self._policy.snapshot_buffers
        wanted += wanted >= _UNHURRIED
        return min(max(wanted, arena.NUM_BUFFERS), arena.MAX_BUFFERS)

    def _failed(self, action: StartWorkers, wanted: Fetch, error: BaseException | None) -> RestoreFailed:
        why = str(error) if isinstance(error, TransferError) else f"{type(error).__name__}: {error}"
        _log.error("generation %d cannot start: %s", action.generation, why)
        return RestoreFailed(
            at=time.time(),
            node=self._node,
            generation=action.generation,
            rank=wanted.rank,
            step=wanted.step,
            source="peer",
            where=wanted.node,
            why=why,
        )


def _allocate(fd: int) -> None:
    """The rest of an arena. If there is not enough after all, the kernel makes it page by page as the rank writes."""
    try:
        arena.allocate(fd)
    except OSError as error:
        _log.warning("memory for snapshots is scarce: %s", error)
    finally:
        os.close(fd)


def _failure(task: "asyncio.Task[None]") -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None
