"""What ranks tell on their links, made into reports: marks, faults, requests for memory, snapshots that do not restore.

Called by the node's groups for every frame. It decides nothing; garbage from a rank costs that frame only.
"""

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Protocol

from everstep.agent.memory.arenas import Memory
from everstep.agent.processes import ahead
from everstep.agent.processes.ahead import Ahead
from everstep.agent.ranks import drills, granting
from everstep.agent.ranks.workers import Group, Worker
from everstep.agent.watching.observing import Observing
from everstep.model import events
from everstep.model.facts import RankAccount
from everstep.wire import local

MAX_TEXT = 2000
MAX_TOLD = 64
"""Faults and failed restores of one rank in one generation that are reported, and garbage that is logged: a rank that
goes on for ever must fill neither the journal nor the log."""

_log = logging.getLogger(__name__)


class RankHost(Protocol):
    """The node that has the ranks: what their frames ask of it."""

    def report(self, event: events.Event) -> None: ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...

    def account(self, worker: Worker) -> RankAccount: ...

    def learn_ahead(self, told: Ahead) -> None: ...

    def take_twin(self, worker: Worker, told: dict[str, Any], fd: int) -> None: ...

    def refuse_twin(self, worker: Worker, why: str) -> None: ...

    def note_all_stepped(self) -> None: ...


class RankFrames:
    """Of the node's current group."""

    def __init__(
        self,
        node: str,
        memory: Memory,
        observing: Observing,
        host: RankHost,
    ) -> None:
        self._node = node
        self._memory = memory
        self._observing = observing
        self._host = host
        self._group: Group | None = None
        self._world_size = 1
        self._former_world = 0
        self._rung: set[int] = set()
        self._num_told: Counter[tuple[int, str]] = Counter()

    def begin(self, group: Group, world_size: int, former_world: int = 0) -> None:
        """Frames are this group's from now on. `former_world`: its state is spread from so many ranks'."""
        self._former_world = former_world
        self._group = group
        self._num_told.clear()
        self._world_size = world_size

    def take(self, worker: Worker, frame: local.Frame, fds: list[int]) -> None:
        """One frame of a rank. Never raises for what is in it."""
        twin = fds.pop(0) if fds and isinstance(frame.get("twin"), dict) else None
        for fd in fds:
            os.close(fd)  # workers have no others to give
        try:
            self._act_on(worker, frame, twin)
        except Exception as error:  # a lie must not end the turn of the loop in which others are heard
            if self._may_tell(worker, "garbage"):
                text = str(error)[:MAX_TEXT]
                _log.warning("rank %d: frame not understood: %s: %s", worker.rank, type(error).__name__, text)

    def _act_on(self, worker: Worker, frame: local.Frame, twin: int | None) -> None:
        if twin is not None:
            self._host.take_twin(worker, frame["twin"], twin)
        elif "no_twin" in frame:
            self._host.refuse_twin(worker, str(frame["no_twin"])[:MAX_TEXT])
        elif "mark" in frame or "listens" in frame or "begins" in frame:
            self._on_mark(worker, str(frame.get("mark", "entered" if "begins" in frame else "")))
        elif "modules" in frame and isinstance(frame["modules"], list):
            self._host.learn_ahead(ahead.parse(frame["modules"], frame.get("changed")))
        elif "memory" in frame:
            self._host.spawn(self._grant(worker, granting.asked(frame["memory"])))
        elif "drilled" in frame:
            drills.on_answer(worker, frame)
        elif "fault" in frame and self._may_tell(worker, "fault"):
            self._on_fault(worker, str(frame["fault"]["where"])[:MAX_TEXT], str(frame["fault"]["why"])[:MAX_TEXT])
        elif "size_fixed" in frame and self._may_tell(worker, "size_fixed"):
            self._on_size_fixed(worker, frame["size_fixed"])
        elif "restore_failed" in frame and self._may_tell(worker, "restore_failed"):
            self._on_restore_failed(worker, frame["restore_failed"])
        elif self._group is not None:
            self._observing.take(self._group, worker, frame)

    def _may_tell(self, worker: Worker, what: str) -> bool:
        self._num_told[worker.rank, what] += 1
        return self._num_told[worker.rank, what] <= MAX_TOLD

    def _on_mark(self, worker: Worker, mark: str) -> None:
        """A rank whose program runs natively listens once torch has been imported."""
        if mark == "entered" and worker.is_native and not worker.has_begun:
            worker.has_begun = True
            worker.on_begin()
        worker.has_entered |= mark != "entered" or not worker.is_native
        if mark:
            self._ring(worker)

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
        accounts = tuple(self._host.account(worker) for worker in present)
        if accounts:
            event = events.MarksReported(
                at=time.time(), node=self._node, generation=group.generation, accounts=accounts
            )
            self._host.report(event)
        for worker, account in zip(present, accounts, strict=True):
            worker.has_stepped |= account.first_step is not None
        if group.workers and all(worker.has_stepped for worker in group.workers.values()):
            self._host.note_all_stepped()

    def _on_fault(self, worker: Worker, where: str, why: str) -> None:
        at, generation = time.time(), self._generation
        event = events.RuntimeFaulted(
            at=at, node=self._node, rank=worker.rank, generation=generation, where=where, why=why
        )
        self._host.report(event)

    def _on_restore_failed(self, worker: Worker, raw: dict[str, Any]) -> None:
        """The rank is about to end because of it. What it may not have said of an earlier life is not believed."""
        group = self._group
        if group is None or group.workers.get(worker.rank) is not worker:
            return
        source, step = str(raw["source"]), int(raw["step"])
        if source not in ("memory", "disk") or not 0 <= step < 2**63:
            raise ValueError(f"source {source!r}, step {step}")
        rank = int(raw.get("rank", worker.rank))  # ranks of a node may keep parts of one another's state
        if rank not in group.workers and not 0 <= rank < self._former_world:
            raise ValueError(f"rank {rank} is not on this node")
        event = events.RestoreFailed(
            at=time.time(),
            node=self._node,
            generation=group.generation,
            rank=rank,
            step=step,
            source=source,
            where=str(raw.get("where", ""))[:MAX_TEXT],
            why=str(raw.get("why", ""))[:MAX_TEXT],
            is_damaged=raw.get("is_damaged", True) is True,
        )
        self._host.report(event)

    def _on_size_fixed(self, worker: Worker, raw: dict[str, Any]) -> None:
        """`world_size` 0: as many ranks as there are."""
        group = self._group
        if group is None or group.workers.get(worker.rank) is not worker:
            return
        world_size = int(raw["world_size"]) or self._world_size
        if not 0 < world_size < 2**31:
            raise ValueError(f"{world_size} ranks")
        event = events.SizeFixed(
            at=time.time(),
            node=self._node,
            generation=group.generation,
            rank=worker.rank,
            world_size=world_size,
            why=str(raw["why"])[:MAX_TEXT],
        )
        self._host.report(event)

    @property
    def _generation(self) -> int:
        return self._group.generation if self._group is not None else -1

    async def _grant(self, worker: Worker, asked: granting.Asked) -> None:
        refused = await granting.grant(worker, asked, self._world_size, self._memory)
        if refused is not None:
            self._host.report(granting.as_event(refused, self._node, worker.rank, self._generation, asked.num_bytes))
