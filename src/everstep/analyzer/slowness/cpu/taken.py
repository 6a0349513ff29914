"""Finds the rank that loses its CPU to a foreign process, from the kernel's view of each process on the CPU (eBPF).
Pure.

On a machine with more to run than CPUs, all ranks wait alike: a process that is bound to one CPU drives everything else
to the other CPUs. So the length of a rank's wait shows nothing; the process on its CPU does. A process is named if it
is bound to some CPUs, had the rank's CPU round after round, came recently, and took from no other rank of that machine.
A process that may run anywhere can also stay on a CPU for ten seconds, but by chance: the next one does so at a
neighbour's.
"""

import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import msgspec

from everstep.analyzer.observations.records import RankTiming
from everstep.model.facts import Taken

MIN_SHARE = 0.08
"""Share of the rank's time, as for a slow machine."""

MOSTLY = 4.0
"""Multiple of what the same process took from any other rank of the machine, or from this one before."""

MIN_FACTOR = 2.0
"""Multiple of what the others lost in this way."""

MIN_USUAL = 4
"""Rounds; fewer do not show what is usual."""

MAX_NAMED = 3

_Shares = Mapping[int, float]  # process -> share of a rank's time


class Robbed(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    share: float  # share of its time
    others_share: float
    takers: tuple[Taken, ...]  # largest share first

    @property
    def says(self) -> str:
        """`rank 0 is ready and not scheduled for 15% of its time; its CPU is taken by burn (pid 7) (15%), ...`."""
        named = ", ".join(f"{each.name or '?'} (pid {each.pid}) ({each.share:.0%})" for each in self.takers[:MAX_NAMED])
        more = f" and {len(self.takers) - MAX_NAMED} more" if len(self.takers) > MAX_NAMED else ""
        return (
            f"rank {self.rank} is ready and not scheduled for {self.share:.0%} of its time; its CPU is taken by "
            f"{named}{more}, bound to it and new there; the others lose {self.others_share:.0%} in this way"
        )


def find_robbed(
    rounds: Sequence[Sequence[RankTiming]], usual_rounds: Sequence[Sequence[RankTiming]], min_votes: int
) -> Robbed | None:
    """The rank that alone lost its CPU, in at least `min_votes` of the rounds."""
    now, before, host_of = _seen(rounds), _seen(usual_rounds), _hosts(rounds)
    ranks = [rank for rank in now if len(now[rank]) >= min_votes and len(before.get(rank, ())) >= MIN_USUAL]
    if len(ranks) < 2:
        return None
    means = {rank: _mean(now[rank]) for rank in now}
    own: dict[int, list[int]] = {}
    for rank in ranks:
        neighbours = [means[each] for each in means if each != rank and host_of[each] == host_of[rank]]
        own[rank] = _own_takers(now[rank], _mean(before[rank]), neighbours, min_votes)
    lost = {rank: sum(means[rank][pid] for pid in own[rank]) for rank in ranks}
    rank = max(ranks, key=lambda each: lost[each])
    others_share = statistics.median(lost[each] for each in ranks if each != rank)
    votes = sum(_sum(each, own[rank]) >= MIN_SHARE for each in now[rank])
    if lost[rank] < max(MIN_SHARE, MIN_FACTOR * others_share) or votes < min_votes:
        return None
    names = {each.pid: each.name for timings in rounds for t in timings if t.rank == rank for each in t.takers or ()}
    takers = sorted((Taken(pid, names[pid], means[rank][pid]) for pid in own[rank]), key=lambda t: (-t.share, t.pid))
    return Robbed(rank=rank, share=lost[rank], others_share=others_share, takers=tuple(takers))


def _own_takers(now: Sequence[_Shares], before: _Shares, neighbours: Sequence[_Shares], min_votes: int) -> list[int]:
    """Processes that took from this rank in most rounds, and hardly from others or earlier."""
    found = []
    for pid, share in _mean(now).items():
        elsewhere = max((each.get(pid, 0.0) for each in neighbours), default=0.0)
        is_steady = sum(pid in each for each in now) >= min_votes
        if is_steady and share >= MOSTLY * max(elsewhere, before.get(pid, 0.0)):
            found.append(pid)
    return found


def _seen(rounds: Sequence[Sequence[RankTiming]]) -> dict[int, list[_Shares]]:
    """Shares per rank, for the rounds that were observed."""
    found: defaultdict[int, list[_Shares]] = defaultdict(list)
    for timing in (each for timings in rounds for each in timings):
        if timing.takers is not None:
            found[timing.rank].append({each.pid: each.share for each in timing.takers})
    return found


def _hosts(rounds: Sequence[Sequence[RankTiming]]) -> dict[int, str]:
    return {timing.rank: timing.host for timings in rounds for timing in timings}


def _mean(rounds: Sequence[_Shares]) -> dict[int, float]:
    """Mean over the rounds. A process that is not among the takers of a round counts as 0 there."""
    pids = {pid for each in rounds for pid in each}
    return {pid: sum(each.get(pid, 0.0) for each in rounds) / len(rounds) for pid in pids}


def _sum(shares: _Shares, pids: Collection[int]) -> float:
    return sum(shares.get(pid, 0.0) for pid in pids)
