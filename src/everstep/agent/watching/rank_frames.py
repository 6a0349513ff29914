"""Frames of ranks on their links, made into reports: marks, faults, requests for memory, snapshots that do not restore.

Called by the node's groups for every frame. It decides nothing; garbage from a rank costs that frame only.
"""

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

import msgspec

from everstep.agent.memory.arenas import Memory
from everstep.agent.processes import ahead
from everstep.agent.processes.ahead import Ahead
from everstep.agent.ranks import drills, granting
from everstep.agent.ranks.workers import Group, Worker
from everstep.agent.watching.observing import Observing
from everstep.model import events
from everstep.model.facts import RankAccount
from everstep.wire import frames, local

MAX_TEXT = 2000
MAX_TOLD = 64
"""Faults and failed restores of one rank in one generation that are reported, and garbage that is logged: a rank that
never stops must fill neither the journal nor the log."""

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
    """The frames of the node's current group."""

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
            return
        for name, (kind, act) in _KNOWN.items():
            if name in frame:
                act(self, worker, msgspec.convert(frame, kind))
                return
        if self._group is not None:
            self._observing.take(self._group, worker, frame)

    def _may_tell(self, worker: Worker, what: str) -> bool:
        self._num_told[worker.rank, what] += 1
        return self._num_told[worker.rank, what] <= MAX_TOLD

    def _on_mark(self, worker: Worker, told: frames.Mark) -> None:
        self._reach(worker, told["mark"])

    def _on_begins(self, worker: Worker, _told: frames.Begins) -> None:
        self._reach(worker, "entered")

    def _on_listens(self, worker: Worker, _told: frames.Listens) -> None:
        worker.has_entered = True

    def _reach(self, worker: Worker, mark: frames.MarkName) -> None:
        """A rank whose program runs natively listens once torch has been imported."""
        if mark == "entered" and worker.is_native and not worker.has_begun:
            worker.has_begun = True
            worker.on_begin()
        worker.has_entered |= mark != "entered" or not worker.is_native
        self._ring(worker)

    def _on_modules(self, _worker: Worker, told: frames.Modules) -> None:
        self._host.learn_ahead(ahead.parse(told["modules"], told["changed"], told["took_s"]))

    def _on_memory(self, worker: Worker, told: frames.AskMemory) -> None:
        self._host.spawn(self._grant(worker, granting.asked(told["memory"])))

    def _on_no_twin(self, worker: Worker, told: frames.NoTwin) -> None:
        self._host.refuse_twin(worker, told["no_twin"][:MAX_TEXT])

    def _on_drilled(self, worker: Worker, told: frames.Drilled) -> None:
        drills.on_answer(worker, told)

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

    def _on_fault(self, worker: Worker, told: frames.Fault) -> None:
        if self._may_tell(worker, "fault"):
            where, why = told["fault"]["where"][:MAX_TEXT], told["fault"]["why"][:MAX_TEXT]
            at, generation = time.time(), self._generation
            self._host.report(
                events.RuntimeFaulted(
                    at=at, node=self._node, rank=worker.rank, generation=generation, where=where, why=why
                )
            )

    def _on_restore_failed(self, worker: Worker, frame: frames.RestoreFailed) -> None:
        """The rank is about to end because of it. What it may not have said of an earlier life is not believed."""
        group, told = self._group, frame["restore_failed"]
        if group is None or group.workers.get(worker.rank) is not worker or not self._may_tell(worker, "restore"):
            return
        rank = told.get("rank", worker.rank)  # ranks of a node may keep parts of one another's state
        step = told["step"]
        if step is None or not 0 <= step < 2**63:
            raise ValueError(f"step {step}")
        if rank not in group.workers and not 0 <= rank < self._former_world:
            raise ValueError(f"rank {rank} is not on this node")
        event = events.RestoreFailed(
            at=time.time(),
            node=self._node,
            generation=group.generation,
            rank=rank,
            step=step,
            source=told["source"],
            where=told.get("where", "")[:MAX_TEXT],
            why=told.get("why", "")[:MAX_TEXT],
            is_damaged=told.get("is_damaged", True),
            is_unfit=told.get("is_unfit", False),
        )
        self._host.report(event)

    def _on_incomplete(self, worker: Worker, frame: frames.Incomplete) -> None:
        if not self._may_tell(worker, "incomplete"):
            return
        told = frame["incomplete"]
        if not 0 <= told["step"] < 2**63:
            raise ValueError(f"step {told['step']}")
        self._host.report(
            events.StateIncomplete(
                at=time.time(),
                node=self._node,
                generation=self._generation,
                rank=worker.rank,
                step=told["step"],
                why=told["why"][:MAX_TEXT],
            )
        )

    def _on_size_fixed(self, worker: Worker, frame: frames.SizeFixed) -> None:
        group, told = self._group, frame["size_fixed"]
        if group is None or group.workers.get(worker.rank) is not worker or not self._may_tell(worker, "size_fixed"):
            return
        world_size = told["world_size"] or self._world_size
        if not 0 < world_size < 2**31:
            raise ValueError(f"{world_size} ranks")
        event = events.SizeFixed(
            at=time.time(),
            node=self._node,
            generation=group.generation,
            rank=worker.rank,
            world_size=world_size,
            why=told["why"][:MAX_TEXT],
        )
        self._host.report(event)

    @property
    def _generation(self) -> int:
        return self._group.generation if self._group is not None else -1

    async def _grant(self, worker: Worker, asked: granting.Asked) -> None:
        refused = await granting.grant(worker, asked, self._world_size, self._memory)
        if refused is not None:
            self._host.report(granting.as_event(refused, self._node, worker.rank, self._generation, asked.num_bytes))


_KNOWN: Mapping[str, tuple[type, Callable[[RankFrames, Worker, Any], None]]] = {
    "mark": (frames.Mark, RankFrames._on_mark),
    "begins": (frames.Begins, RankFrames._on_begins),
    "listens": (frames.Listens, RankFrames._on_listens),
    "modules": (frames.Modules, RankFrames._on_modules),
    "memory": (frames.AskMemory, RankFrames._on_memory),
    "drilled": (frames.Drilled, RankFrames._on_drilled),
    "fault": (frames.Fault, RankFrames._on_fault),
    "size_fixed": (frames.SizeFixed, RankFrames._on_size_fixed),
    "incomplete": (frames.Incomplete, RankFrames._on_incomplete),
    "restore_failed": (frames.RestoreFailed, RankFrames._on_restore_failed),
    "no_twin": (frames.NoTwin, RankFrames._on_no_twin),
}
"""The frame types and their handlers, by the field that identifies a frame. The rest is `Observing`'s."""
