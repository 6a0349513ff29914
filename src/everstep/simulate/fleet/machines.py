"""Machines of the fleet: what is wrong with them, and when they come back from repair."""

import math
from random import Random

from everstep.simulate.fleet.faults import Cause
from everstep.simulate.fleet.setup import Setup


class Fault:
    """One fault with one root, however often it shows. `rules`: what decided each restart because of it."""

    def __init__(self, cause: Cause, at: float, cell: "Cell", unit: int, *, stays: bool) -> None:
        self.cause = cause
        self.at = at
        self.cell = cell
        self.unit = unit  # which machine of it
        self.stays = stays
        self.is_hidden = False  # the machine does not tell of it
        self.version = ""  # of the code in which it is, if it is in the code
        self.rules: list[str] = []
        self.is_solved_by_person = False


class Cell:
    """Machines that the brain sees as one node. `weights`: faults of each, to those of an ordinary machine."""

    def __init__(self, weights: list[float]) -> None:
        self.weights = weights
        self.faults: list[Fault] = []  # that stay

    def take_over(self, gone: "Cell", unit: int) -> None:
        """It has the place of a cell that one machine was taken out of; the others, and their faults, stay."""
        mine = self.weights[0]
        self.weights = [mine if number == unit else weight for number, weight in enumerate(gone.weights)]
        for fault in gone.faults:
            if fault.unit != unit:
                fault.cell = self
                self.faults.append(fault)


class Pool:
    """Machines that can be asked for. A finite one fills again by repairs."""

    def __init__(self, setup: Setup, dice: Random) -> None:
        self._setup = setup
        self._dice = dice
        self._left = None if setup.num_spares is None else setup.num_cells + setup.num_standby + setup.num_spares
        self._returning: list[float] = []  # when machines come back from repair
        self._repair_mu = math.log(setup.repair.median_s)

    def take(self, now: float) -> tuple[Cell, float]:
        """A machine, and when it can be had."""
        if self._left is None:
            return self._new(), now
        if self._left > 0:
            self._left -= 1
            return self._new(), now
        if not self._returning:
            return self._new(), math.inf
        self._returning.sort()
        return self._new(), max(now, self._returning.pop(0))

    def give_back(self, now: float, repair_s: float | None) -> None:
        """It is repaired and comes back, as good as any."""
        if self._left is not None:
            drawn_s = self._dice.lognormvariate(self._repair_mu, self._setup.repair.sigma)
            self._returning.append(now + (drawn_s if repair_s is None else repair_s))

    def give_back_all(self, num_machines: int) -> None:
        """The run has ended: what it held can be had again."""
        if self._left is not None:
            self._left += num_machines

    def _new(self) -> Cell:
        return Cell([self.draw_weight()])

    def draw_weight(self) -> float:
        is_lemon = self._dice.random() < self._setup.lemons.share
        return self._setup.lemons.times if is_lemon else 1.0
