"""Step times in slices of time that several trainings take in turns. Pure; called by overhead.py.

Two trainings that run one after the other meet two different machines: other load, other clock. Here all of them are
alive at once and all but one are stopped (SIGSTOP), a second or two at a time, so that every round is a pair. What
other programs do to a shared machine only ever makes a step longer: the lower quartile of all steps is compared,
and the interval comes from drawing whole rounds again.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from measuring.figures import quantile

_RESAMPLES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The time that one training had to itself, without its first moments."""

    contender: str
    round: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one training's steps cost beside the baseline's, as a share of the baseline's."""

    num_rounds: int
    share: float
    low: float  # 95 % interval
    high: float


def durations(times: Sequence[tuple[float, float]], within: Slice) -> list[float]:
    """How far the second value (any clock) went in each step that began and ended in the slice."""
    inside = [value for at, value in times if within.began <= at <= within.ended]
    return [later - earlier for earlier, later in itertools.pairwise(inside)]


def typical(rounds: Sequence[Sequence[float]]) -> float | None:
    """Lower quartile of all steps; None when there are none."""
    return quantile([one for steps in rounds for one in steps], 0.25)


def cost(own: Sequence[Sequence[float]], baseline: Sequence[Sequence[float]], *, seed: int = 0) -> Cost | None:
    """Paired by round: a round in which either has no step is left out. None when no round is left."""
    pairs = [(mine, theirs) for mine, theirs in zip(own, baseline, strict=True) if mine and theirs]
    if not pairs:
        return None
    rng = random.Random(seed)
    drawn = sorted(_share(rng.choices(pairs, k=len(pairs))) for _ in range(_RESAMPLES))
    return Cost(
        num_rounds=len(pairs),
        share=_share(pairs),
        low=drawn[int(0.025 * _RESAMPLES)],
        high=drawn[int(0.975 * _RESAMPLES) - 1],
    )


def _share(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    mine, theirs = typical([pair[0] for pair in pairs]), typical([pair[1] for pair in pairs])
    assert mine is not None
    assert theirs is not None
    return mine / theirs - 1


def turns(names: Sequence[str], round_: int) -> list[str]:
    """The order within a round: rotated, and every other round backwards, so that nobody is always first or last."""
    shift = (round_ // 2) % len(names)
    order = [*names[shift:], *names[:shift]]
    return order[::-1] if round_ % 2 else order
