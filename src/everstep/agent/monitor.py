"""Looks at every live rank of this node twice a second: four signals each, as ages, for the controller's hang rule.

It decides nothing. The first three signals cost some file reads; stacks are taken only of ranks that have been quiet
for longer than their own steps last, less often the longer the quiet lasts.
"""

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from everstep.agent.board import Board
from everstep.agent.stacks import Stacks
from everstep.agent.workers import Group, Worker
from everstep.analyzer.signals import Phase, phase_seen
from everstep.model.events import SignalsReported
from everstep.model.facts import RankAccount, Signals
from everstep.probes.communication import CommunicationProbe
from everstep.probes.log_age import LogProbe
from everstep.probes.probe import Probe
from everstep.probes.process import DeviceProbe, is_traced
from everstep.probes.stack import StackProbe
from everstep.worker.board import Phase as BoardPhase

LOOK_S = 0.5
"""A quarter of the shortest window."""

QUIET_S = 0.7
"""No stack before a rank has been quiet for this long, or for half as much again as its longest recent step."""

STACK_EVERY_S = 0.4
STACK_SHARE = 0.1
"""The next stack of a rank that works comes after this, or after this share of the quiet so far: an evaluation of an
hour is not sampled nine thousand times. Of a rank that does nothing, one says enough for a long time."""

IDLE_STACK_EVERY_S = 5.0

STACK_LIMIT_S = 2.0
_OVER = (BoardPhase.FINISHING, BoardPhase.ENDING)


class _RankMonitor:
    def __init__(self, worker: Worker, board: Board) -> None:
        self.worker = worker
        self._board = board
        self._log = LogProbe((worker.paths.stdout, worker.paths.stderr))
        self._device = DeviceProbe(worker.pid)
        self._communication: Probe = CommunicationProbe(lambda: board.communication(worker.local_rank))
        self.stack = StackProbe()
        self.stack_asked_at = float("-inf")
        self.is_asking = False
        self._step: tuple[int, float] | None = None
        self._step_s: deque[float] = deque(maxlen=32)

    def look(self, now: float) -> Signals:
        account = self._board.account(self.worker.local_rank)
        self._note_step(account)
        communication_s = self._communication.look(now)
        quiet_s = self._quiet_s(account.last_step_at, communication_s, now)
        if quiet_s < self.quiet_limit_s:
            self.stack.forget()
        phase = self._phase(account)
        is_quiet = quiet_s >= self.quiet_limit_s and phase is not Phase.STARTUP
        device_s = self._device.look(now)
        return Signals(
            rank=self.worker.rank,
            phase=str(phase),
            log_s=self._log.look(now),
            stack_s=self.stack.look(now),
            device_s=device_s,
            communication_s=communication_s,
            log_gap_s=self._log.gap_s,
            paused=self.stack.in_debugger or is_traced(self.worker.pid),
            looking=is_quiet and not self.stack.num_taken and not self.stack.why_not,
            has_snapshot=account.published_step is not None,
            last_step=account.last_step,
            last_step_at=account.last_step_at,
            state=self._device.state,
        )

    def wants_stack(self, signals: Signals, now: float) -> bool:
        if self.is_asking or signals.phase == Phase.STARTUP or signals.last_step_at is None:
            return False
        quiet_s = self._quiet_s(signals.last_step_at, signals.communication_s, now)
        is_idle = signals.device_s is not None and signals.device_s >= QUIET_S and self.stack.num_taken
        interval_s = max(IDLE_STACK_EVERY_S if is_idle else STACK_EVERY_S, STACK_SHARE * quiet_s)
        return quiet_s >= self.quiet_limit_s and now - self.stack_asked_at >= interval_s

    @property
    def quiet_limit_s(self) -> float:
        return max(QUIET_S, 1.5 * max(self._step_s, default=0.0))

    def _quiet_s(self, stepped_at: float | None, communication_s: float | None, now: float) -> float:
        """Seconds without a step and without a collective; 0 while neither is known."""
        stepped_s = None if stepped_at is None else now - stepped_at
        return max(0.0, min((age for age in (communication_s, stepped_s) if age is not None), default=0.0))

    def _note_step(self, account: RankAccount) -> None:
        step, at = account.last_step, account.last_step_at
        if step is None or at is None:
            return
        if self._step is not None and step > self._step[0]:
            self._step_s.append(max(0.0, at - self._step[1]) / (step - self._step[0]))
        self._step = (step, at)

    def _phase(self, account: RankAccount) -> Phase:
        """Before the first step and after the last one nobody knows what is usual: the start-up's patience."""
        if account.first_step is None or self._board.phase(self.worker.local_rank) in _OVER:
            return Phase.STARTUP
        return phase_seen(Phase.TRAIN, (self.stack.activity,) if self.stack.activity is not None else ())


class Monitor:
    """Of the node's current generation."""

    def __init__(
        self, node: str, board: Board, stacks: Stacks, spawn: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        self._node = node
        self._board = board
        self.stacks = stacks
        self._spawn = spawn
        self._ranks: dict[int, _RankMonitor] = {}

    def look(self, group: Group, now: float) -> SignalsReported:
        alive = [worker for worker in group.workers.values() if worker.is_alive]
        known = {pid: rank for pid, rank in self._ranks.items() if rank.worker.is_alive}
        self._ranks = {worker.pid: known.get(worker.pid) or _RankMonitor(worker, self._board) for worker in alive}
        seen = []
        for rank in self._ranks.values():
            signals = rank.look(now)
            seen.append(signals)
            if rank.wants_stack(signals, now):
                rank.is_asking, rank.stack_asked_at = True, now
                self._spawn(self._take(rank, now))
        return SignalsReported(at=now, node=self._node, generation=group.generation, signals=tuple(seen))

    async def _take(self, rank: _RankMonitor, at: float) -> None:
        threads: list[object] = []
        why_not = ""
        try:
            threads, why_not = await self.stacks.take(rank.worker.pid, STACK_LIMIT_S)
        finally:
            rank.is_asking = False
        rank.stack.take(threads, why_not, at)
