"""Finds the rank that waits longer for a CPU than usual, and than its neighbours on the same machine. Pure.

Another process runs on its core: one that was pinned there, or another container. That slows the whole job and is no
fault of the machine. No node is evicted for it; the report names the rank, the wait and the rival.
"""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from everstep.analyzer.observations.records import RankTiming
from everstep.analyzer.observations.words import per_step

MIN_SHARE = 0.05
"""Share of the others' compute time per step."""

LUCK = 0.5
"""Share of the wait that it, or the others, usually have: on a busy machine, chance decides for a while which rank
waits longest."""

MIN_S = 0.001
MOST = 0.6


class Starving(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    wait_s: float  # per step, for a CPU
    usual_s: float
    others_s: float  # wait of its neighbours; without neighbours, of ranks on other machines
    has_neighbours: bool
    throttled_s: float | None = None  # part of `wait_s` for which the quota of its cgroup stops it
    usual_throttled_s: float = 0.0

    @property
    def is_throttled(self) -> bool:
        """Whether its quota explains most of the longer wait."""
        if self.throttled_s is None:
            return False
        return self.throttled_s - self.usual_throttled_s >= MOST * (self.wait_s - self.usual_s)

    @property
    def says(self) -> str:
        """`rank 1 waits 57 ms per step for a CPU, usually 2 ms, its neighbours 3 ms`."""
        whom = "its neighbours on the same machine" if self.has_neighbours else "the others"
        return (
            f"rank {self.rank} waits {per_step(self.wait_s)} per step for a CPU, usually {per_step(self.usual_s)}, "
            f"{whom} {per_step(self.others_s)}"
        )


def find_starving(
    rounds: Sequence[Sequence[RankTiming]], usual_rounds: Sequence[Sequence[RankTiming]], min_votes: int
) -> Starving | None:
    """The rank that waited longest in at least `min_votes` of the rounds, and longer than in the rounds before."""
    usual, usual_cpu = _usual(usual_rounds, "delay_s"), _usual(usual_rounds, "cpu_s")
    votes: Counter[int] = Counter()
    for timings in rounds:
        worst = _worst(timings, usual, usual_cpu)
        if worst is not None:
            votes[worst] += 1
    if not votes:
        return None
    rank, count = votes.most_common(1)[0]
    if count < min_votes:
        return None
    stopped = _usual(usual_rounds, "throttled_s").get(rank, 0.0)
    return msgspec.structs.replace(_of(rank, rounds, usual), usual_throttled_s=stopped)


def _usual(rounds: Sequence[Sequence[RankTiming]], name: str) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for timings in rounds:
        for timing in timings:
            value: float | None = getattr(timing, name)
            if value is not None:
                found.setdefault(timing.rank, []).append(value)
    return {rank: statistics.median(values) for rank, values in found.items()}


def _worst(timings: Sequence[RankTiming], usual: Mapping[int, float], usual_cpu: Mapping[int, float]) -> int | None:
    """The worst rank of one round. Ranks are compared within their node first: a wait of all ranks on a machine belongs
    to none of them."""
    known = {t.rank: t for t in timings if t.delay_s is not None and t.rank in usual}
    least_s = max(MIN_S, MIN_SHARE * statistics.median(t.compute_s for t in timings)) if timings else MIN_S
    grown = {}
    for rank, timing in known.items():
        others_s, _ = _others(timing, list(known.values()))
        usual_s = usual[rank] * _own_growth(timing, usual_cpu)
        grown[rank] = (timing.delay_s or 0.0) - (1 + LUCK) * max(others_s, usual_s)
    worst = max(grown, key=lambda rank: grown[rank], default=None)
    return worst if worst is not None and len(known) > 1 and grown[worst] >= least_s else None


def _own_growth(timing: RankTiming, usual_cpu: Mapping[int, float]) -> float:
    """Growth of its own CPU time, as a factor of at least 1.

    On a busy machine a rank that needs more CPU time waits in proportion, without a rival.
    """
    usual_s = usual_cpu.get(timing.rank, 0.0)
    return max(1.0, timing.cpu_s / usual_s) if timing.cpu_s is not None and usual_s > 0 else 1.0


def _others(timing: RankTiming, all_: Sequence[RankTiming]) -> tuple[float, bool]:
    neighbours = [t.delay_s or 0.0 for t in all_ if t.rank != timing.rank and t.host and t.host == timing.host]
    rest = neighbours or [t.delay_s or 0.0 for t in all_ if t.rank != timing.rank]
    return (statistics.median(rest) if rest else 0.0), bool(neighbours)


def _of(rank: int, rounds: Sequence[Sequence[RankTiming]], usual: Mapping[int, float]) -> Starving:
    waits, others, throttled, has_neighbours = [], [], [], False
    for timings in rounds:
        known = [t for t in timings if t.delay_s is not None]
        for timing in known:
            if timing.rank == rank:
                others_s, has_neighbours = _others(timing, known)
                waits.append(timing.delay_s or 0.0)
                others.append(others_s)
                if timing.throttled_s is not None:
                    throttled.append(timing.throttled_s)
    return Starving(
        rank=rank,
        wait_s=statistics.fmean(waits),
        usual_s=usual[rank],
        others_s=statistics.fmean(others),
        has_neighbours=has_neighbours,
        throttled_s=statistics.fmean(throttled) if 2 * len(throttled) > len(waits) else None,
    )
