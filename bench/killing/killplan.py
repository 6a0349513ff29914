"""Which process dies, when and how: the whole plan of kills drawn from one seed. Pure; called by kills.py."""

import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass

POLICY = "blind_restarts = 1000000\n"
"""What kills from outside have in common is us: no machine is to be examined for it."""

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT)
TARGETS = ("rank", "agent", "controller")
_MIX = (6, 2, 2)  # weights of TARGETS: mostly what dies mostly
_GAP = (2, 6)  # steps between two kills: short enough for 100 kills in minutes, long enough to be training
_RECOVERY_S = 0.6  # a kill "in a recovery" falls uniformly into so many seconds after another one


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One kill. It happens `phase` of a step time after step `after_step` was logged.

    `in_recovery_s`: not None means that `rank` gets SIGKILL first, and the target dies so much later.
    """

    index: int
    target: str
    signal: signal.Signals
    rank: int
    after_step: int
    phase: float
    in_recovery_s: float | None

    @property
    def told(self) -> str:
        who = f"rank {self.rank}" if self.target == "rank" else f"the {self.target}"
        when = "" if self.in_recovery_s is None else f" {self.in_recovery_s:.2f} s into a recovery"
        return f"{self.signal.name} to {who}{when}"


def plan(*, num_kills: int, seed: int, target: str, num_ranks: int, first_step: int) -> list[Kill]:
    """`target` is one of TARGETS or "mix". Ranks die in the middle of a step; the others also in a recovery."""
    rng = random.Random(seed)
    kills = []
    after_step = first_step
    for index in range(1, num_kills + 1):
        who = rng.choices(TARGETS, _MIX)[0] if target == "mix" else target
        # Controller and agent end only by what nobody can catch: their SIGTERM is an orderly end, not a fault.
        how = rng.choice(SIGNALS) if who == "rank" else signal.SIGKILL
        in_recovery = who != "rank" and rng.random() < 0.5
        kills.append(
            Kill(
                index=index,
                target=who,
                signal=how,
                rank=rng.randrange(num_ranks),
                after_step=after_step,
                phase=rng.random(),
                in_recovery_s=rng.uniform(0, _RECOVERY_S) if in_recovery else None,
            )
        )
        after_step += rng.randint(*_GAP)
    return kills


def steps_needed(kills: Sequence[Kill]) -> int:
    """Length of a training in which every kill finds its step, and which goes on for a while after the last."""
    return (kills[-1].after_step if kills else 0) + 2 * _GAP[1]
