"""Finds the rank with data that is lost on its way while the job hardly makes a step. Pure.

If a link loses much, a step takes seconds or does not end, and no round has complete steps to compare (`sending`). Two
sources remain. The kernel counts the segments that a rank sends again, and the time for which its data was on its way.
And the nodes' own probes are lost on a link of its machine; so an upload to a store elsewhere, which loses segments
too, names no rank.
"""

import statistics
from collections.abc import Collection, Sequence

import msgspec

NUM_ROUNDS = 3
MIN_SHARE = 0.5
"""Share of each round in which its data was on its way."""

MIN_LOST, LOST_ROUNDS = 3, 2
"""Segments sent again, and rounds with some: TCP doubles its wait before each further try."""

MOST_STEPS = 0.5
"""Multiple of the usual number of steps."""

MIN_EXPECTED = 4.0
"""Usual steps in the same time; with fewer, a missing step shows nothing."""

MOSTLY = 2.0
"""Multiple of what any other rank sends again: a lossy path loses acknowledgements too, and the other end repeats."""


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """Data of one rank in one round."""

    rank: int
    share: float | None  # share of the time with its data on its way; None: unknown
    lost: int | None  # segments that it sent again
    num_steps: int


class Losing(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    share: float
    lost: int
    num_steps: int
    num_usual: float
    span_s: float

    @property
    def says(self) -> str:
        """`data of rank 1 is on its way for 96% of the time, and 12 segments were sent again; the job made 3 steps in
        6 s, usually 78`."""
        return (
            f"data of rank {self.rank} is on its way for {self.share:.0%} of the time, and {self.lost} segments were "
            f"sent again; the job made {self.num_steps} steps in {self.span_s:.0f} s, usually {self.num_usual:.0f}"
        )


def find_losing(
    rounds: Sequence[Sequence[Way]], round_s: float, usual_per_s: float, candidates: Collection[int]
) -> Losing | None:
    """The rank with lost data, or None. `rounds`: the newest ones, of `round_s` seconds each, oldest first.
    `usual_per_s`: steps per second. `candidates`: ranks on machines with lost probes."""
    rounds = rounds[-NUM_ROUNDS:]
    if len(rounds) < NUM_ROUNDS:
        return None
    span_s = round_s * len(rounds)
    num_usual = usual_per_s * span_s
    num_steps = max((sum(each) for each in _by_rank(rounds, "num_steps").values()), default=0)
    if num_usual < MIN_EXPECTED or num_steps > MOST_STEPS * num_usual:
        return None
    lost = {rank: sum(each) for rank, each in _by_rank(rounds, "lost").items()}
    shares = _by_rank(rounds, "share")
    rank = max(lost, key=lambda each: lost[each], default=-1)
    others = max((num for each, num in lost.items() if each != rank), default=0)
    if rank not in candidates or lost[rank] < max(MIN_LOST, MOSTLY * others):
        return None
    mine = [way for ways in rounds for way in ways if way.rank == rank]
    num_lossy, num_busy = sum(bool(way.lost) for way in mine), sum((way.share or 0.0) >= MIN_SHARE for way in mine)
    if num_lossy < LOST_ROUNDS or num_busy < NUM_ROUNDS:
        return None
    share = statistics.fmean(shares[rank])
    return Losing(
        rank=rank, share=share, lost=int(lost[rank]), num_steps=int(num_steps), num_usual=num_usual, span_s=span_s
    )


def _by_rank(rounds: Sequence[Sequence[Way]], name: str) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for way in (each for ways in rounds for each in ways):
        if (value := getattr(way, name)) is not None:
            found.setdefault(way.rank, []).append(value)
    return found
