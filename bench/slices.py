"""Step times in slices of time that several trainings take in turns. Pure; called by overhead.py.

Two trainings that run one after the other meet two different machines: other load, other clock. Here all of them are
alive at once and all but one are stopped (SIGSTOP), a few seconds at a time, so that every round is a pair.
"""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from figures import interval_of_median


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The time that one training had to itself, without its first moments."""

    contender: str
    round: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one training's steps cost beside the baseline's, over rounds. Shares of the baseline's step time."""

    num_rounds: int
    share: float  # median over rounds of (step / baseline's step - 1)
    low: float | None  # 95 % bootstrap interval of it
    high: float | None


def step_s(times: Sequence[float], within: Slice) -> float | None:
    """Median time of the steps that began and ended in the slice; None when there are fewer than three."""
    inside = [at for at in times if within.began <= at <= within.ended]
    gaps = [later - earlier for earlier, later in itertools.pairwise(inside)]
    return statistics.median(gaps) if len(gaps) >= 3 else None


def cost(steps: Sequence[float | None], baseline: Sequence[float | None]) -> Cost | None:
    """Paired by round; a round in which either was not measured is left out. None when no round is left."""
    shares = [own / base - 1 for own, base in zip(steps, baseline, strict=True) if own is not None and base is not None]
    if not shares:
        return None
    low, high = interval_of_median(shares) or (None, None)
    return Cost(num_rounds=len(shares), share=statistics.median(shares), low=low, high=high)


def turns(names: Sequence[str], round_: int) -> list[str]:
    """The order within a round: rotated, and every other round backwards, so that nobody is always first or last."""
    shift = (round_ // 2) % len(names)
    order = [*names[shift:], *names[:shift]]
    return order[::-1] if round_ % 2 else order
