"""Setup of a simulation: the fleet, its faults, their costs, and the policy. A frozen value; the seed is kept apart."""

import math

import msgspec

from everstep.core.state.policy import Policy
from everstep.simulate.fleet.costs import Costs
from everstep.simulate.fleet.faults import Mix
from everstep.simulate.fleet.pace import Cadence

DAY_S = 86400.0
GPUS_PER_NODE = 8
MAX_CELLS = 128
"""More would only cost time: healthy machines are alike. docs/simulate.md compares it with every machine by itself."""


class Strike(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that comes at a time of its own. `node`, `repair_s`: None where they are drawn."""

    at_s: float  # seconds since the begin of the run
    cause: int  # index into the mix
    node: int | None = None
    repair_s: float | None = None


class Lemons(msgspec.Struct, frozen=True, kw_only=True):
    """Machines that fail more often than others. On the public trace (400 servers, 348 days) the worst 5.75 % had
    27.6 % of all faults: `Lemons(share=0.0575, times=6.25)`."""

    share: float = 0.0
    times: float = 1.0


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """Log-normal. Of the public trace: median 0.85 days, mean 5.5 days."""

    median_s: float = 0.85 * DAY_S
    mean_s: float = 5.5 * DAY_S

    @property
    def sigma(self) -> float:
        return math.sqrt(2 * math.log(self.mean_s / self.median_s)) if self.mean_s > self.median_s else 0.0


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """A machine has 8 GPUs. The brain sees `num_cells` nodes of one rank each: a cell is as many machines as it takes,
    and all their ranks start, step and end together. When a machine of a cell is replaced, the others stay."""

    num_nodes: int
    num_cells: int
    days: float
    mix: Mix
    costs: Costs
    policy: Policy
    num_standby: int
    num_spares: int | None = None  # machines of the cluster that can be had besides; None: as many as are asked for
    step_s: float = 6.0
    every_step: bool = True  # a snapshot of every step in memory, and a copy on another node
    save_every_s: float = 600.0  # a checkpoint on storage
    strikes: tuple[Strike, ...] | None = None  # from a trace; None: drawn from the mix
    burst: float = 1.0  # variance over mean of the faults of a day; 1: independent
    lemons: Lemons = Lemons()
    repair: Repair = Repair()
    recall: float = 0.95  # of machine faults that could tell of themselves, how many do (Baige: above 95 %)
    recur_s: float = 600.0  # mean time until a fault that stayed comes again
    exam_recall: float = 0.7  # of faults that tests of a stopped machine can find, how many one test finds
    spread: float = 0.5  # of all durations: standard deviation over mean

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * GPUS_PER_NODE

    @property
    def nodes_per_cell(self) -> int:
        return math.ceil(self.num_nodes / self.num_cells)

    @property
    def wall_s(self) -> float:
        return self.days * DAY_S

    @property
    def cadence(self) -> Cadence:
        """In memory every step, storage asynchronously beside it; or storage only, which stalls."""
        costs = self.costs
        return Cadence(
            step_s=self.step_s,
            stall_s=costs.stall_s if self.every_step else 0.0,
            save_every_s=self.save_every_s,
            save_stall_s=0.0 if self.every_step else costs.save_stall_s,
            persist_s=costs.persist_s,
        )
