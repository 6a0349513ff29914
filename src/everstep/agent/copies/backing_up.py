"""Keeps a copy of each rank's newest snapshot on another node, as far as the controller has placed it.

One task per rank: when memory holds something newer than what was sent, that is pinned and pushed. An anchor
(`anchors`) goes first, because all ranks have it, and only it can be trusted later; otherwise the newest. A peer that
does not take it costs the copy, a line in the log and a longer pause, nothing else. Called by the node's `Copies`; ends
with the generation.
"""

import asyncio
import logging
import re

from everstep.agent.copies.anchors import Anchors
from everstep.agent.memory.arenas import Memory
from everstep.checkpoint import arena
from everstep.checkpoint.transport import Limiter, Pushed, Tls, TransferError, drop, push
from everstep.core.state.policy import Policy
from everstep.model.actions import PlaceBackups
from everstep.model.facts import Backup

LOOK_S = 0.02
"""How soon a new snapshot is noticed: a machine that is lost in between costs its step."""

MAX_PAUSE_S = 0.1
"""Pause after a push: twice the time that it took, but at most this, so that handshakes for small states of quick steps
keep no CPU busy."""

_BACK_OFF_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

_log = logging.getLogger(__name__)


class BackingUp:
    def __init__(
        self, memory: Memory, policy: Policy, anchors: Anchors, token: str, run: str, tls: Tls | None = None
    ) -> None:
        self._memory = memory
        self._anchors = anchors
        self._token = token
        self._run = run
        self._tls = tls
        self._limiter = Limiter(policy.backup_rate_bytes_s)
        self._tasks: dict[int, tuple[Backup, asyncio.Task[None]]] = {}
        self._sent: dict[int, int] = {}  # rank: newest step that its peer holds complete
        self._places: dict[int, set[Backup]] = {}  # rank: where copies of it lie, as far as this node has sent them
        self._dropping: set[asyncio.Task[None]] = set()

    def place(self, action: PlaceBackups, world_size: int) -> None:
        """From now on. A rank whose place stays is not disturbed."""
        wanted = {backup.rank: backup for backup in action.backups}
        for rank, (backup, _) in list(self._tasks.items()):
            if wanted.get(rank) != backup:
                self._end(rank)
                self._sent.pop(rank, None)
        for rank, backup in wanted.items():
            if rank not in self._tasks or self._tasks[rank][1].done():
                task = asyncio.create_task(self._keep_copied(backup, world_size, action.generation))
                task.add_done_callback(_log_failure)
                self._tasks[rank] = backup, task

    def step_of(self, rank: int) -> int | None:
        """Newest step of which another node holds a complete copy."""
        return self._sent.get(rank)

    def end(self) -> None:
        """The generation is over. Returns at once; a push under way is broken off."""
        for rank in list(self._tasks):
            self._end(rank)
        for task in self._dropping:
            task.cancel()

    def begin(self) -> None:
        """Another generation: what the peers of the one before hold says nothing about it."""
        self.end()
        self._sent.clear()

    async def close(self) -> None:
        tasks = [*(task for _, task in self._tasks.values()), *self._dropping]
        self.end()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, rank: int) -> None:
        _, task = self._tasks.pop(rank)
        task.cancel()
        self._memory.pin(rank, arena.PIN_BACKUP, None)

    def _leave_others(self, backup: Backup, generation: int) -> None:
        """An anchor is complete at the rank's place: what lies at places that it had before is not needed any more."""
        for old in self._places[backup.rank] - {backup}:
            self._places[backup.rank].discard(old)  # once: a node that wants the memory gives it to others anyway
            task = asyncio.create_task(self._drop(old, generation))
            self._dropping.add(task)
            task.add_done_callback(self._dropping.discard)
            task.add_done_callback(_log_failure)

    async def _drop(self, old: Backup, generation: int) -> None:
        try:
            await drop(old.endpoint, self._token, rank=old.rank, generation=generation, run=self._run, tls=self._tls)
        except TransferError as error:
            _log.info("%s", error)
        else:
            _log.info("rank %d is copied elsewhere now, and its copies on %s are dropped", old.rank, old.node)

    async def _keep_copied(self, backup: Backup, world_size: int, generation: int) -> None:
        """Back up one rank's snapshots until cancelled. Our own faults are reported and retried like the peer's:
        without this task the rank's snapshots would be lost with this machine, unnoticed."""
        sent: arena.Snapshot | None = None
        anchor, num_failures, told = -1, 0, ""
        while True:
            try:
                chosen = self._pinned(backup.rank, sent, anchor)
                if chosen is None:
                    await asyncio.sleep(LOOK_S)
                    continue
                fd, snapshot = chosen
                pushed = await self._push(backup, world_size, fd, snapshot)
            except Exception as error:
                pause_s = _BACK_OFF_S[min(num_failures, len(_BACK_OFF_S) - 1)]
                num_failures += 1
                if (why := _without_numbers(str(error))) != told:
                    told = why
                    unexpected = None if isinstance(error, TransferError) else error
                    _log.warning("no backup on %s, trying again: %s", backup.node, error, exc_info=unexpected)
                await asyncio.sleep(pause_s)
                continue
            if told:
                _log.info("rank %d has a backup on %s again, of step %d", backup.rank, backup.node, snapshot.step)
            sent, num_failures, told = snapshot, 0, ""
            if self._anchors.includes(snapshot.step):
                anchor = snapshot.step
            self._places.setdefault(backup.rank, set()).add(backup)
            if anchor >= 0:
                self._leave_others(backup, generation)
            self._sent[backup.rank] = max(snapshot.step, self._sent.get(backup.rank, -1))
            await asyncio.sleep(min(MAX_PAUSE_S, max(LOOK_S, 2 * pushed.took_s)))

    async def _push(self, backup: Backup, world_size: int, fd: int, snapshot: arena.Snapshot) -> Pushed:
        return await push(
            backup.endpoint,
            self._token,
            rank=backup.rank,
            world_size=world_size,
            fd=fd,
            snapshot=snapshot,
            limiter=self._limiter,
            run=self._run,
            tls=self._tls,
        )

    def _pinned(self, rank: int, sent: arena.Snapshot | None, anchor: int) -> tuple[int, arena.Snapshot] | None:
        """Return what to send next, pinned until something else is; None if nothing is new, or it is gone."""
        held = [s for fd in self._memory.arenas_of(rank) for s in arena.inspect(fd).snapshots]
        newest = max(held, key=lambda s: (s.step, s.generation), default=None)
        if newest is None or (sent is not None and newest.step <= sent.step and newest.generation <= sent.generation):
            return None
        kept = self._memory.pinned(rank, arena.PIN_SPARE)
        if self._anchors.may_go(-1 if kept is None else kept, anchor, newest.step):
            self._memory.pin(rank, arena.PIN_SPARE, anchor)
        elif kept is not None:  # again: the rank has formatted its memory since, pins and all
            self._memory.pin(rank, arena.PIN_SPARE, kept)
        waiting = [s.step for s in held if s.step > anchor and self._anchors.includes(s.step)]
        step = max(waiting, default=newest.step)
        self._memory.pin(rank, arena.PIN_BACKUP, step)
        return self._memory.find(rank, step)


def _without_numbers(sentence: str) -> str:
    """Mask numbers, so that the same trouble is reported once and not for each step and each figure."""
    return re.sub(r"\d+", "#", sentence)


def _log_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("keeping a backup failed", exc_info=task.exception())
