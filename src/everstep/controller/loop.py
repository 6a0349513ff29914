"""The controller's one loop: inputs become events in order of arrival, events become records, records are acted on.

Journal first: nothing is acknowledged and nothing is done before the record is on disk. When the disk does not take
it, the loop waits and tries again; training continues meanwhile. Every effect is one branch of `_execute`, without a
question about the state. Run by `controller.main`.
"""

import asyncio
import dataclasses
import logging
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from everstep.controller.detectors.together import Detectors, Found
from everstep.controller.diagnosing import Diagnosing
from everstep.controller.peers.gate import Gate
from everstep.controller.peers.peers import Input, Peer, Peers
from everstep.controller.record.bare import bare
from everstep.controller.record.copied import Copied
from everstep.controller.record.drafting import Drafting, Poison
from everstep.controller.record.ledger import Drafted, Ledger
from everstep.controller.record.spec_file import SpecFile
from everstep.controller.remembering import Remembering
from everstep.controller.silence import Silence, patience
from everstep.controller.starved import Starved
from everstep.core.state.schema import Role
from everstep.core.step import reissue
from everstep.errors import JournalError
from everstep.journal.beside import collectives, paces
from everstep.model import actions as act
from everstep.model.events import (
    DrillFailed,
    Event,
    EvidenceCollected,
    HangSuspected,
    NodeJoined,
    NodeLost,
    NodeSilent,
    NodeSpared,
    ProgressReported,
    TimerFired,
)
from everstep.model.observations import UNRECORDED, Observation
from everstep.model.record import Record

log = logging.getLogger("everstep.controller")

QUEUE_SIZE = 1024
"""Inputs waiting. Full: connections are read no further, peers keep what is not acknowledged."""

BATCH_SIZE = 256
"""Inputs per disk sync when many wait. More would delay the first one's acknowledgement."""

BREATH = 16
"""Inputs after which the loop looks after its connections and timers: some milliseconds."""

TABLES_S = 1.0
"""Interval between two looks for new tables. The agents report every ten seconds."""

RETRY_S = 1.0
"""Interval between attempts to write a journal that cannot be written."""


ENGINE_DRILLS = ("lose-node", "cut-node", "freeze-node", "flap-link")
"""Drills on a node that the engine injects, not its agent: the node itself is to be gone."""


class Controller:
    def __init__(
        self, run_dir: Path, wanted: SpecFile, ledger: Ledger, gate: Gate, copied: Copied | None = None
    ) -> None:
        self.ledger = ledger
        self._copied = copied
        self.gate = gate
        self.queue: asyncio.Queue[Input] = asyncio.Queue(QUEUE_SIZE)
        self.peers = Peers(spec=wanted.spec, gate=gate, put=self.queue, listener=self)
        self.dropped: Counter[str] = Counter()  # reports by kind that were not recorded
        self.unwritable_since: float | None = None
        self.append_seconds: float | None = None  # the last one
        self._drafting = Drafting(ledger, Poison(run_dir), self._put_aside)
        self._run_dir = run_dir
        self._diagnosing = Diagnosing(run_dir)
        self.detectors = Detectors(ledger.policy)
        self._remembering = Remembering(wanted.run)
        self._remembering.resume(ledger.state.incident)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._starved = Starved()
        self.silence = Silence(self, self._starved)
        self._pending: set[asyncio.Task[None]] = set()
        self._num_reissued = 0
        self._joined = set(ledger.state.members)  # nodes for which NodeJoined means "again"

    async def settle(self) -> None:
        """Until what is on record counts on other hosts too, where a successor may come from there."""
        if self._copied is not None:
            await self._copied.settle(self.ledger.journal.size)

    async def run(self) -> None:
        """Until cancelled. Raises PoisonedError when an input cannot be handled."""
        for node, member in self.ledger.state.members.items():
            if member.role is not Role.OUT:
                self.silence.expect(node)
        self._in_background(self.silence.watch())
        for key, due_at in self.ledger.state.timers.items():
            self._set_timer(key, due_at)
        self._in_background(self._remembering.work())
        self._in_background(self.peers.acknowledge())
        while True:
            batch = [await self.queue.get()]
            while len(batch) < BATCH_SIZE and not self.queue.empty():
                batch.append(self.queue.get_nowait())
            self.peers.make_room()
            await self._handle(batch)
            await self._bring_view_up_to_date()
            for _ in batch:
                self.queue.task_done()

    async def _bring_view_up_to_date(self) -> None:
        number = 0
        while self.ledger.fold_one():
            number += 1
            if number % BREATH == 0:
                await asyncio.sleep(0)

    async def keep_live(self) -> None:
        """Leave unrecorded progress on disk for the reading verbs; runs until cancelled."""
        while True:
            await asyncio.sleep(self.ledger.thinning.save_every_s)
            await self.ledger.thinning.save()

    async def keep_tables(self) -> None:
        """Leave the tables of collectives and of the ranks' pace on disk when they are new; runs until cancelled. A
        disk that cannot take them costs them only."""
        failed = ""
        while True:
            await asyncio.sleep(TABLES_S)
            table, pace = self.detectors.collectives.newest(), self.detectors.slowness.paces.newest()
            try:
                if table is not None:
                    await asyncio.to_thread(collectives.save, self._run_dir, table)
                if pace is not None:
                    await asyncio.to_thread(paces.save, self._run_dir, pace)
                failed = ""
            except OSError as error:
                if (error.strerror or "") != failed:  # once until it changes: it may stay so for weeks
                    log.warning("a table could not be written: %s", error)
                failed = error.strerror or ""

    async def _handle(self, batch: list[Input]) -> None:
        taken: list[tuple[Input, Drafted]] = []
        drafts: list[Drafted] = []
        unrecorded: list[Input] = []
        breathed = 0
        seen: dict[str, int] = {}  # newest report per peer within this batch
        for item in batch:
            if self.ledger.is_known(item.source, item.seq) or (item.source and item.seq <= seen.get(item.source, 0)):
                self._drop(item, "duplicate")
                continue
            due = self._due(item)
            if not any(each is item for each in due):
                unrecorded.append(item)
            while due:
                made = self._drafting.some(due, drafts)
                taken += made
                drafts += [drafted for _, drafted in made]
                if len(drafts) >= breathed + BREATH:
                    breathed = len(drafts)
                    await asyncio.sleep(0)
            seen[item.source] = item.seq
        taken = await self._append(taken)
        for item in unrecorded:  # now: an acknowledgement covers all earlier reports of that peer
            self.ledger.put_aside(item.source, item.seq)
            self._settle(item, recorded=False)
        for number, (item, drafted) in enumerate(taken, 1):
            self._settle(item, recorded=True)
            self._execute(drafted.record)
            self._remembering.note(drafted.record, self.ledger.state)
            self._mind_silence(item.event)
            if isinstance(item.event, HangSuspected | EvidenceCollected):
                self._diagnosing.note(item.event)
            if number % BATCH_SIZE == 0:
                await asyncio.sleep(0)
        self._welcome_back([item.event.node for item, _ in taken if isinstance(item.event, NodeJoined)])

    def settle_at_once(self, name: str, seq: int, event: Event) -> bool:
        """A report of which nothing has to be on record, settled without waiting for those that have: nearly all. What
        is still in the queue of the same peer comes first; what a watch concludes from it goes there."""
        if self.ledger.is_known(name, seq):
            self.dropped["duplicate"] += 1
            return True
        if isinstance(event, UNRECORDED):
            for found in self._look(event):
                self.put_soon(Input(event=found))
        elif not self._holds_back(event):
            return False
        self.ledger.put_aside(name, seq)
        return True

    def _look(self, event: Observation) -> list[Found]:
        found = self.detectors.take(event, self.ledger.state)
        if self.detectors.hangs.is_near:
            self._diagnosing.prepare()
        return found

    def _due(self, item: Input) -> deque[Input]:
        """List what has to be recorded now, held progress first. Empty for signals and progress that can wait."""
        if isinstance(item.event, UNRECORDED):
            return self._drafting.due([Input(event=found) for found in self._look(item.event)])
        return self._drafting.due([] if self._holds_back(item.event) else [item])

    def _holds_back(self, event: Event) -> bool:
        return isinstance(event, ProgressReported) and self.ledger.hold_back(event, time.time())

    async def _append(self, taken: list[tuple[Input, Drafted]]) -> list[tuple[Input, Drafted]]:
        """Put them on record, however long it takes; returns those that are. Nothing is decided meanwhile."""
        while True:
            begun = time.perf_counter()
            try:
                if taken:
                    await self._write([drafted for _, drafted in taken])
                    await self.settle()
                break
            except ValueError as error:
                return await self._append_singly(taken, error)
            except JournalError as error:
                if self.unwritable_since is None:
                    self.unwritable_since = time.time()
                    log.error("nothing can be decided until the journal can be written again: %s", error)  # noqa: TRY400
                await asyncio.sleep(RETRY_S)
        self.append_seconds = time.perf_counter() - begun
        if self.unwritable_since is not None:
            log.warning("the journal is written again, after %.0f s", time.time() - self.unwritable_since)
            self.unwritable_since = None
        for number, (_, drafted) in enumerate(taken):
            self.ledger.take([drafted])
            if number % BREATH == BREATH - 1:
                await asyncio.sleep(0)
        return taken

    async def _write(self, drafts: list[Drafted]) -> None:
        """Write in a thread: a disk takes milliseconds, and connections and timers must not wait for it. Cancellation
        waits for the write to finish."""
        writing = asyncio.create_task(asyncio.to_thread(self.ledger.write, drafts))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])
            raise

    async def _append_singly(
        self, taken: list[tuple[Input, Drafted]], error: ValueError
    ) -> list[tuple[Input, Drafted]]:
        """One of them cannot be written (a time that is NaN): find it, leave it out, decide the rest anew."""
        if len(taken) == 1:
            await self._record_bare(taken[0][0], error)
            return []
        for item, _ in taken:
            await self._handle([item])
        return []

    async def _record_bare(self, item: Input, error: ValueError) -> None:
        """An end of which the explanation cannot be written is recorded without it; everything else is left out."""
        name, kept = type(item.event).__name__, bare(item.event, time.time())
        if kept is None or kept == item.event:
            log.warning("%s cannot be recorded and is ignored: %s", name, error)
            self._put_aside(item, "garbage")
            return
        log.warning("%s cannot be recorded as it came: %s. Recorded without its explanation", name, error)
        await self._handle([dataclasses.replace(item, event=kept)])

    def _execute(self, record: Record) -> None:
        for index, action in enumerate(record.actions):
            command_id = f"{record.seq}.{index}"
            match action:
                case act.Diagnose():
                    self._in_background(self._diagnose(action))
                case act.Inject():
                    self._inject(action, command_id)
                case act.SetTimer():
                    self._set_timer(action.key, action.due_at)
                case _:  # without a receiver it is issued again when that peer connects; or it is only on record
                    for peer in self._receivers(action):
                        self.peers.send(peer, command_id, action)
            if isinstance(action, act.ReleaseNode):
                self.peers.turn_out(action.node, action.why)

    def _receivers(self, action: act.Action) -> list[Peer]:
        """The connected peers that carry this out."""
        match action:
            case act.OpenStore() | act.AcquireNode() | act.EvictNode() | act.ReleaseNode():
                found = [self.peers.launcher()]
            case (
                act.SettleDoubt()
                | act.StartWorkers()
                | act.StopWorkers()
                | act.CollectEvidence()
                | act.TraceRank()
                | act.ExamineNode()
                | act.PlaceBackups()
                | act.TrustStep()
                | act.PersistSnapshot()
                | act.CommitCheckpoint()
                | act.StrikeCheckpoint()
                | act.ValidateUpdate()
            ):
                found = [self.peers.get(action.node)]
            case act.Inject():
                is_for_engine = action.kind in ENGINE_DRILLS
                found = [self.peers.launcher() if is_for_engine else self.peers.get(action.node or "")]
            case act.Finish():
                found = [*self.peers.agents(), self.peers.launcher()]
            case _:
                found = []
        return [peer for peer in found if peer is not None]

    def _inject(self, action: act.Inject, command_id: str) -> None:
        if action.kind == "kill-controller":
            os.kill(os.getpid(), signal.SIGKILL)
        for peer in self._receivers(action):
            self.peers.send(peer, command_id, action)
            return
        who = "the launcher" if action.kind in ENGINE_DRILLS else action.node
        why = f"{who} is not connected"
        self.put_soon(Input(event=DrillFailed(at=time.time(), drill=action.drill, why=why)))

    def holds_code(self, folder: str) -> bool:
        """Whether this is a copy of code that belongs to the run."""
        return Path(folder).parent == self._run_dir / "code" and Path(folder).is_dir()

    def put_soon(self, item: Input) -> None:
        """From a callback: into the queue, before what is heard next; waiting for room if there is none."""
        if self.queue.full():
            self._in_background(self.queue.put(item))
        else:
            self.queue.put_nowait(item)

    async def _diagnose(self, action: act.Diagnose) -> None:
        links = self.detectors.links
        event = await self._diagnosing.answer(
            action, self.detectors.hangs.has_moved_on, lambda: links.sight(self.ledger.state, time.time())
        )
        await self.queue.put(Input(event=event))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    def _set_timer(self, key: str, due_at: float) -> None:
        earlier = self._timers.pop(key, None)
        if earlier is not None:
            earlier.cancel()
        self._timers[key] = asyncio.get_running_loop().call_later(max(0.0, due_at - time.time()), self._fire, key)

    def _fire(self, key: str) -> None:
        self._timers.pop(key, None)
        if key in self.ledger.state.timers:  # else it does not matter any more
            self.put_soon(Input(event=TimerFired(at=time.time(), key=key)))

    def last_seq(self, name: str) -> int:
        return self.ledger.last_seqs.get(name, 0)

    def heard(self, name: str) -> None:
        self.silence.heard(name)

    def connected(self, peer: Peer) -> None:
        log.info("%s connected", peer.name)
        if peer.role == "launcher":
            self._reissue_to([peer])

    def _mind_silence(self, event: object) -> None:
        """Keep the list of nodes whose silence counts: those that joined, until they are lost."""
        if isinstance(event, NodeLost):
            self.silence.forget(event.node)
        elif isinstance(event, NodeSilent | NodeSpared):
            member = self.ledger.state.members.get(event.node)
            if member is not None and not member.silent:
                self.silence.spare(event.node)
        elif isinstance(event, NodeJoined):
            self._starved.joined(event.node, event.host, event.pid)
            member = self.ledger.state.members.get(event.node)
            if member is not None and member.role is not Role.OUT:
                self.silence.expect(event.node)

    def _welcome_back(self, nodes: list[str]) -> None:
        """Reissue commands to nodes that reconnect. For thousands at once the pending ones are read off the state only
        once."""
        again = [node for node in nodes if node in self._joined]
        self._joined.update(nodes)
        self._reissue_to([peer for node in again if (peer := self.peers.get(node)) is not None])

    def _reissue_to(self, peers: list[Peer]) -> None:
        """Send again what these peers have not answered. Repeating is harmless."""
        if not peers:
            return
        self._num_reissued += 1
        names = {peer.name for peer in peers}
        for index, action in enumerate(reissue(self.ledger.state, self.ledger.policy)):
            for peer in self._receivers(action):
                if peer.name in names:
                    self.peers.send(peer, f"{self.ledger.journal.seq}.again{self._num_reissued}.{index}", action)

    def silent_limit_s(self, node: str) -> float:
        return patience(self.ledger.state, self.ledger.policy, node)

    def is_behind(self) -> bool:
        return self.queue.full()

    def on_silent(self, node: str, silent_s: float) -> None:
        self.put_soon(Input(event=NodeSilent(at=time.time(), node=node, silent_s=silent_s)))

    def on_lost(self, node: str, silent_s: float) -> None:
        """Declare a node lost that could not be ended. It has ended itself: its lease is shorter than this."""
        reason = f"it was silent for {silent_s:.1f} s, and the engine did not report its end"
        self.put_soon(Input(event=NodeLost(at=time.time(), node=node, reason=reason)))

    def _drop(self, item: Input, kind: str) -> None:
        self.dropped[kind] += 1
        self._settle(item, recorded=False)

    def _put_aside(self, item: Input, kind: str) -> None:
        self.ledger.put_aside(item.source, item.seq)
        self._drop(item, kind)

    def _settle(self, item: Input, *, recorded: bool) -> None:
        if item.source:
            self.peers.settle(item, recorded=recorded)
        if item.settled is not None:
            item.settled(recorded)
