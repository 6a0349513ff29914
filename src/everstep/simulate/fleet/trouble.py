"""Faults strike a simulated fleet: when each happens, when it is noticed, how it is reported, whether it comes again.

A fault that stays with a machine or in the code comes again after every start, until the job runs without that machine
or with other code. One that strikes while nothing runs is reported only if the machine is gone.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Protocol

from everstep.core.state.phases import ALIVE, Phase
from everstep.core.state.schema import State
from everstep.model.events import Event
from everstep.simulate.fleet.faults import Sign, Stays
from everstep.simulate.fleet.ledger import Ledger
from everstep.simulate.fleet.machines import Cell, Fault
from everstep.simulate.fleet.setup import Setup, Strike
from everstep.simulate.fleet.signs import exit_event, first_event

_DIES_AFTER_S = 1.0
"""From a machine's alert to the end of its ranks, if it was left in place."""


class Fleet(Protocol):
    """The simulated fleet as faults see it: where they strike, and how they are noticed there."""

    setup: Setup
    now: float
    state: State
    ledger: Ledger
    cell_of: dict[str, Cell]

    @property
    def mark(self) -> tuple[int, int]: ...
    def cell_in(self, slot: int) -> Cell | None: ...
    def at(self, when: float, act: Callable[[], None]) -> None: ...
    def draw(self, mean_s: float) -> float: ...
    def feed(self, event: Event) -> None: ...
    def report(self, at: float) -> None: ...
    def lose(self, node: str, reason: str, repair_s: float | None = None) -> None: ...


class Trouble:
    def __init__(self, world: Fleet, dice: Random) -> None:
        self.faults: list[Fault] = []
        self.shown: list[Fault] = []  # told to the brain since the last start
        self.hang: Fault | None = None  # that evidence is collected of
        self.version = ""  # of the code that runs; empty: what the run was started with
        self._in_code: list[Fault] = []  # that stay until the code is changed
        self._world = world
        self._dice = dice

    def mend_code(self) -> None:
        """People did."""
        for fault in self._in_code:
            fault.is_solved_by_person = True
        self._in_code = []

    def strike(self, strike: Strike) -> None:
        cause = self._world.setup.mix.causes[strike.cause]
        slot, unit = (
            self._draw_place() if strike.node is None else divmod(strike.node, self._world.setup.nodes_per_cell)
        )
        cell = self._world.cell_in(slot)
        if cell is None:
            return  # nothing runs there: the run is between two attempts, or waits for a machine
        stays = cause.stays is not Stays.NOWHERE and self._dice.random() < cause.stays_share
        fault = Fault(cause, self._world.now, cell, unit, stays=stays)
        if cause.sign is Sign.ALERT:
            fault.is_hidden = self._dice.random() >= self._world.setup.recall
        fault.version = self.version
        self.faults.append(fault)
        if stays:
            (cell.faults if cause.stays is Stays.MACHINE else self._in_code).append(fault)
        self._show(fault, self._world.mark, strike.repair_s)

    def _draw_place(self) -> tuple[int, int]:
        """Slot, and which of its machines. Lemons more often."""
        heaviest = max(1.0, self._world.setup.lemons.times)
        for _ in range(1000):
            slot, unit = (
                self._dice.randrange(self._world.setup.num_cells),
                self._dice.randrange(self._world.setup.nodes_per_cell),
            )
            cell = self._world.cell_in(slot)
            if cell is None or unit >= len(cell.weights) or self._dice.random() * heaviest <= cell.weights[unit]:
                break
        return slot, unit

    def recur(self, begun_at: float) -> None:
        """Schedule faults that were not cured to recur: those of the code before the first step is done, those of
        machines after a while."""
        for fault in self._in_code:
            if fault.version != self.version:
                continue
            self._world.at(begun_at + 0.5 * self._world.setup.step_s, partial(self._show, fault, self._world.mark))
        for node in self._world.state.active_nodes:
            for fault in self._world.cell_of[node].faults:
                again_s = self._dice.expovariate(1.0 / self._world.setup.recur_s)
                self._world.at(begun_at + again_s, partial(self._show, fault, self._world.mark))

    def _show(self, fault: Fault, mark: tuple[int, int], repair_s: float | None = None) -> None:
        """It happens; the brain hears of it later."""
        if mark != self._world.mark or self.rank_of(fault) is None:
            return
        costs = self._world.setup.costs
        fault.at = self._world.now
        runs = self._world.state.phase in ALIVE
        if runs and fault.cause.sign not in (Sign.SLOW, Sign.WRONG, Sign.CHANGE):
            self._world.ledger.break_at(self._world.now)
        detect_s, diagnose_s = (
            self._world.draw(costs.detect(fault.cause)),
            self._world.draw(costs.diagnose(fault.cause)),
        )
        if fault.is_hidden:
            detect_s = self._world.draw(costs.detect_s.get(Sign.EXIT, 0.0))
        if runs:
            self._world.at(self._world.now + detect_s, partial(self._detect, mark))
        self._world.at(self._world.now + detect_s + diagnose_s, partial(self._tell, fault, mark, repair_s))

    def _detect(self, mark: tuple[int, int]) -> None:
        if mark == self._world.mark:
            self._world.ledger.detect_at(self._world.now)

    def _tell(self, fault: Fault, mark: tuple[int, int], repair_s: float | None) -> None:
        rank = self.rank_of(fault)
        if rank is None:
            return
        node = self._world.state.slots[rank] or ""
        if fault.cause.sign is Sign.LOST:
            self.shown.append(fault)
            self._world.ledger.blame(fault.cause.name)
            self._world.lose(node, f"simulated: {fault.cause.name}", repair_s)
            return
        if mark != self._world.mark or self._world.state.phase not in ALIVE:
            return  # the job was stopped for something else; what stays comes again
        self.shown.append(fault)
        self._world.ledger.blame(fault.cause.name)
        self._world.report(
            self._world.ledger.broken_at if self._world.ledger.broken_at is not None else self._world.now
        )
        self.hang = fault if fault.cause.sign is Sign.HANG else None
        pace, generation = self._world.ledger.pace, self._world.state.generation
        needs_running = fault.cause.sign in (Sign.HANG, Sign.SLOW, Sign.WRONG)
        if needs_running and self._world.state.phase is not Phase.RUNNING:
            self._world.ledger.break_at(self._world.now)
            self._world.feed(exit_event(fault, at=self._world.now, generation=generation, node=node, rank=rank))
            return
        done = pace.last_step(fault.at) if pace is not None else None
        self._world.feed(
            first_event(
                fault,
                at=self._world.now,
                generation=generation,
                node=node,
                rank=rank,
                num_ranks=self._world.setup.num_cells,
                done=done,
            )
        )
        if fault.cause.sign is Sign.ALERT and self._world.state.phase in ALIVE and self._world.mark == mark:
            self._world.at(self._world.now + _DIES_AFTER_S, partial(self._die, fault, mark))

    def _die(self, fault: Fault, mark: tuple[int, int]) -> None:
        """The machine was left in place, and its ranks end."""
        rank = self.rank_of(fault)
        if rank is not None and mark == self._world.mark and self._world.state.phase in ALIVE:
            node = self._world.state.slots[rank] or ""
            self._world.feed(
                exit_event(fault, at=self._world.now, generation=self._world.state.generation, node=node, rank=rank)
            )

    def rank_of(self, fault: Fault) -> int | None:
        """Where it shows now: on its machine, wherever that is; None when that is not in use any more."""
        if fault.cause.stays is Stays.CODE:
            return 0 if self._world.cell_in(0) is not None else None
        return next(
            (slot for slot in range(len(self._world.state.slots)) if self._world.cell_in(slot) is fault.cell), None
        )

    def note_rule(self, rule: str) -> None:
        """Record `rule` as the response to the faults that showed since the last start; for a change of the program,
        "merge-update"."""
        for fault in self.shown:
            fault.rules.append("merge-update" if fault.cause.sign is Sign.CHANGE else rule)
        self.shown = []
