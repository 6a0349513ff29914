"""Looks at every live rank of this node at least twice a second: four signals each, as ages, for the hang rule.

It decides nothing. The first three signals cost some file reads; stacks are taken only of ranks that have been quiet
for longer than their own steps last, less often the longer the quiet lasts.
"""

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from everstep.agent.memory.board import Board
from everstep.agent.ranks.workers import Group, Worker
from everstep.agent.watching.sockets import FRESH_S, Sockets
from everstep.agent.watching.stacks import Stacks
from everstep.analyzer.hangs.signals import Phase, phase_seen
from everstep.analyzer.observations.clusters import Activity
from everstep.analyzer.observations.words import busy_text
from everstep.model.facts import RankAccount, RankNote, Signals
from everstep.model.observations import SignalsReported
from everstep.probes.probe import Probe
from everstep.probes.process import DeviceProbe, is_traced
from everstep.probes.rank.communication import CommunicationProbe
from everstep.probes.rank.log_age import LogProbe
from everstep.probes.rank.rank_wait import find_wait
from everstep.probes.rank.stack import StackProbe
from everstep.probes.rank.traffic import TrafficProbe
from everstep.probes.rank.waiting import Wait
from everstep.worker.process.board import Activity as Told
from everstep.worker.process.board import Phase as BoardPhase

LOOK_S = 0.5
"""A quarter of the shortest window."""

LOOK_QUIET_S = 0.25
"""While a rank is quiet: half as much time between the end of the window and the look that sees it."""

QUIET_S = 0.6
"""No stack before a rank has been quiet for this long, or for half as much again as its usual long steps."""

USUAL = 0.9
"""Share of the recent steps that counts as usual; a longer one is an evaluation, a save, a stall, and must not make us
look late."""

STACK_EVERY_S = 0.4
STACK_SHARE = 0.1
"""The next stack of a rank that works comes after this, or after this share of the quiet so far: an evaluation of an
hour is not sampled nine thousand times. Of a rank that does nothing, one says enough for a long time."""

IDLE_STACK_EVERY_S = 5.0

MIN_MOVES = 10
"""Looks at which communication had moved: five seconds of a program that communicates all the time."""

STACK_LIMIT_S = 2.0
ENDING_S = 10.0
"""After a program's last line its process ends within a moment, where nothing is left to do."""

UNSEEN_S = 15.0
"""How long after that it is reported without its place."""

BUSY, ENDING = "busy", "ending"
_OVER = (BoardPhase.FINISHING, BoardPhase.ENDING)
_TOLD = {int(Told.EVALUATION): Phase.EVALUATION, int(Told.CHECKPOINT): Phase.CHECKPOINT}
"""Waiting for data is a part of training: a loader that is blocked must be found as soon as any other hang."""


class _RankMonitor:
    def __init__(self, worker: Worker, board: Board, store_port: int | None) -> None:
        self.worker = worker
        self._store_port = store_port
        self._board = board
        self._log = LogProbe((worker.paths.stdout, worker.paths.stderr))
        self.device = DeviceProbe(worker.pid)
        self.traffic = TrafficProbe()
        self.is_quiet = False
        self._communication: Probe = CommunicationProbe(lambda: board.communication(worker.local_rank))
        self.stack = StackProbe()
        self.stack_asked_at = float("-inf")
        self.is_asking = False
        self._step: tuple[int, float] | None = None
        self._step_s: deque[float] = deque(maxlen=32)
        self._communicated_s: float | None = None  # before
        self._looked_at: float | None = None
        self._num_moves = 0  # looks at which communication had moved
        self._told_ending: str | None = None

    def look(self, now: float) -> Signals:
        account = self._board.account(self.worker.local_rank)
        self.worker.last_words.look(now, account.last_step_at)
        self._note_step(account)
        communication_s = self._communication.look(now)
        self._note_communication(communication_s)
        quiet_s = self._quiet_s(account.last_step_at, communication_s, now)
        if quiet_s < self.quiet_limit_s and self._board.over_at(self.worker.local_rank) is None:
            self.stack.forget()
            self.traffic.forget()
        told = self._board.activity(self.worker.local_rank)
        phase = self._phase(account, told)
        evaluation_s, checkpoint_s = self._board.durations(self.worker.local_rank)
        self.is_quiet = quiet_s >= self.quiet_limit_s and phase is not Phase.STARTUP
        device_s, moved_s = self.device.look(now, is_quiet=self.is_quiet), self.traffic.look(now)
        self._note_disk(now)
        wait = self._wait(device_s) if self.is_quiet else None
        is_transfer = moved_s is not None and moved_s < FRESH_S
        stays = is_transfer or self._board.is_collecting(self.worker.local_rank)  # then a stack that stays is no loop
        return Signals(
            rank=self.worker.rank,
            phase=str(phase),
            log_s=self._log.look(now),
            stack_s=None if stays else self.stack.look(now),
            device_s=device_s if device_s is None or moved_s is None else min(device_s, moved_s),
            communication_s=communication_s,
            log_gap_s=self._log.gap_s,
            evaluation_s=evaluation_s,
            checkpoint_s=checkpoint_s,
            paused=told == Told.PAUSED or self.stack.in_debugger or (self.is_quiet and is_traced(self.worker.pid)),
            busy=self._busy(now),
            is_over=self._board.over_at(self.worker.local_rank) is not None,
            looking=quiet_s >= QUIET_S
            and phase is not Phase.STARTUP
            and not self.stack.num_taken
            and not self.stack.why_not,
            has_snapshot=account.published_step is not None,
            last_step=account.last_step,
            last_step_at=account.last_step_at,
            state=self.device.state,
            waits_on="" if wait is None else str(wait.on),
            waits_for="" if wait is None else wait.what,
            wait_left_s=None if wait is None else wait.left_s,
            place=self.stack.where,
        )

    def _wait(self, device_s: float | None) -> Wait | None:
        """Only where a stack says that the rank waits, and not for the others."""
        activity, (pid, *children) = self.stack.activity, self.device.pids
        if activity not in (Activity.BLOCKED, Activity.LOADER):
            return None
        is_busy = device_s is not None and device_s < LOOK_S
        in_loader = activity is Activity.LOADER
        return find_wait(
            pid,
            children,
            is_busy=is_busy,
            in_loader=in_loader,
            threads=self.stack.threads,
            store_port=self._store_port,
        )

    def note(self, now: float) -> RankNote | None:
        """Why it makes no progress: as it says, or because its program is over. With where it is then."""
        note = self._board.note(self.worker.local_rank)
        if note is None or note.kind == BUSY:
            return note
        return msgspec.structs.replace(note, says=self.stack.where_any) if now - note.since >= ENDING_S else None

    def news(self, now: float) -> bool:
        """Its process has not ended for a while after its program, and that is new, or where it is."""
        note = self.note(now)
        is_known = note is not None and (bool(note.says) or now - note.since >= ENDING_S + UNSEEN_S)
        told = note.says if note is not None and note.kind == ENDING and is_known else None
        before, self._told_ending = self._told_ending, self._told_ending if told is None else told
        return told is not None and before is None

    def _busy(self, now: float) -> str:
        if not self._board.is_busy(self.worker.local_rank, now):
            return ""
        note = self._board.note(self.worker.local_rank)
        return busy_text(note.says if note is not None else "")

    def wants_stack(self, signals: Signals, now: float) -> bool:
        if self.is_asking:
            return False
        over_at = self._board.over_at(self.worker.local_rank)
        if over_at is not None and now - over_at >= ENDING_S:
            return now - self.stack_asked_at >= IDLE_STACK_EVERY_S
        if signals.phase == Phase.STARTUP:
            return False
        quiet_s = self._quiet_s(signals.last_step_at, signals.communication_s, now)
        is_idle = signals.device_s is not None and signals.device_s >= QUIET_S and self.stack.num_taken
        interval_s = max(IDLE_STACK_EVERY_S if is_idle else STACK_EVERY_S, STACK_SHARE * quiet_s)
        return quiet_s >= self.quiet_limit_s and now - self.stack_asked_at >= interval_s

    @property
    def quiet_limit_s(self) -> float:
        """Until then it is not looked at, and so is not judged either: `looking`."""
        usual = sorted(self._step_s)[: max(1, round(USUAL * len(self._step_s)))]
        return max(QUIET_S, 1.5 * max(usual, default=0.0))

    def _quiet_s(self, stepped_at: float | None, communication_s: float | None, now: float) -> float:
        """Seconds without a step and without a collective; 0 while neither is known."""
        stepped_s = None if stepped_at is None else now - stepped_at
        return max(0.0, min((age for age in (communication_s, stepped_s) if age is not None), default=0.0))

    def _note_disk(self, now: float) -> None:
        """By sampling: the kernel adds it up only where delay accounting is switched on."""
        since_s = min(LOOK_S, max(0.0, now - self._looked_at)) if self._looked_at is not None else 0.0
        self._looked_at = now
        self.worker.disk_s = (self.worker.disk_s or 0.0) + (since_s if self.device.state == "D" else 0.0)

    def _note_step(self, account: RankAccount) -> None:
        step, at = account.last_step, account.last_step_at
        if step is None or at is None:
            return
        if self._step is not None and step > self._step[0]:
            self._step_s.append(max(0.0, at - self._step[1]) / (step - self._step[0]))
        self._step = (step, at)

    def _note_communication(self, age: float | None) -> None:
        before, self._communicated_s = self._communicated_s, age
        if age is not None and before is not None and age <= before:
            self._num_moves += 1

    def _phase(self, account: RankAccount, told: int) -> Phase:
        """Before the first step and after the last one it is unknown what is usual: the start-up's patience applies. A
        program whose steps are not seen trains when it has communicated for a while."""
        is_through = account.first_step is not None or self._num_moves >= MIN_MOVES
        if is_through and self._board.phase(self.worker.local_rank) == BoardPhase.FINISHING:
            return Phase.FINISH
        if not is_through or self._board.phase(self.worker.local_rank) in _OVER:
            return Phase.STARTUP
        return phase_seen(
            _TOLD.get(told, Phase.TRAIN), (self.stack.activity,) if self.stack.activity is not None else ()
        )


class Monitor:
    """The monitor of the node's current generation."""

    def __init__(
        self, node: str, board: Board, stacks: Stacks, spawn: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        self._node = node
        self._board = board
        self.stacks = stacks
        self._spawn = spawn
        self._ranks: dict[int, _RankMonitor] = {}
        self._sockets = Sockets()

    @property
    def look_again_s(self) -> float:
        return LOOK_QUIET_S if any(rank.is_quiet for rank in self._ranks.values()) else LOOK_S

    def look(self, group: Group, now: float) -> SignalsReported:
        alive = [worker for worker in group.workers.values() if worker.is_alive]
        known = {pid: rank for pid, rank in self._ranks.items() if rank.worker.is_alive}
        self._ranks = {
            worker.pid: known.get(worker.pid) or _RankMonitor(worker, self._board, group.store_port) for worker in alive
        }
        seen = []
        for rank in self._ranks.values():
            signals = rank.look(now)
            seen.append(signals)
            if rank.wants_stack(signals, now):
                rank.is_asking, rank.stack_asked_at = True, now
                self._spawn(self._take(rank, now))
        quiet = [(rank.device.pids, rank.traffic) for rank in self._ranks.values() if rank.is_quiet]
        if quiet and self._sockets.is_due(now):
            self._spawn(self._sockets.count(quiet, now))
        return SignalsReported(at=now, node=self._node, generation=group.generation, signals=tuple(seen))

    def note_of(self, worker: Worker, now: float) -> RankNote | None:
        """Why it makes no progress; None: it does, or nothing is known."""
        rank = self._ranks.get(worker.pid)
        return rank.note(now) if rank is not None and rank.worker is worker else None

    def take_news(self, now: float) -> list[Worker]:
        """Ranks with something to be reported at once."""
        return [rank.worker for rank in self._ranks.values() if rank.news(now)]

    async def _take(self, rank: _RankMonitor, at: float) -> None:
        look = None
        try:
            look = await self.stacks.of_rank(rank.worker, STACK_LIMIT_S)
        finally:
            rank.is_asking = False
        rank.stack.take(look.threads, look.why_not, at)
