"""Finds the ranks that lose their CPU to a foreign process, from the kernel's view of each process on the CPU (eBPF),
or from two looks at /proc. Pure.

On a machine with more to run than CPUs, all ranks wait alike: a process that is bound to one CPU drives everything else
to the other CPUs. So the length of a rank's wait shows nothing; the process on its CPU does. A process is named if it
is bound to some CPUs, had the rank's CPU round after round, came recently, and took from no other rank of that machine,
except ranks from which it took as much: they share that CPU. A process that may run anywhere can also stay on a CPU for
ten seconds, but by chance: the next one does so at a neighbour's.
"""

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from everstep.analyzer.observations.records import RankTiming
from everstep.analyzer.observations.words import ranks_text, verb
from everstep.model.facts import Taken

MIN_SHARE = 0.08
"""Share of the rank's time, as for a slow machine."""

MOSTLY = 4.0
"""Multiple of what the same process took from any other rank of the machine, or from this one before."""

AS_MUCH = 0.5
"""Least share of what the process took from the rank that lost most to it, for a rank that loses the same CPU."""

MIN_FACTOR = 2.0
"""Multiple of what the others lost in this way."""

MIN_USUAL = 4
"""Rounds; fewer do not show what is usual."""

MAX_NAMED = 3

_Shares = Mapping[int, float]  # process -> share of a rank's time


class Robbed(msgspec.Struct, frozen=True, kw_only=True):
    ranks: tuple[int, ...]  # more than one: they lose the same CPU to the same processes
    share: float  # mean share of their time
    others_share: float
    takers: tuple[Taken, ...]  # mean of these ranks, largest share first

    @property
    def says(self) -> str:
        """`rank 0 is ready and not scheduled for 15% of its time; its CPU is taken by burn (pid 7) (15%), ...`."""
        named = ", ".join(f"{each.name or '?'} (pid {each.pid}) ({each.share:.0%})" for each in self.takers[:MAX_NAMED])
        more = f" and {len(self.takers) - MAX_NAMED} more" if len(self.takers) > MAX_NAMED else ""
        their = verb(self.ranks, "its", "their")
        return (
            f"{ranks_text(self.ranks)} {verb(self.ranks, 'is', 'are')} ready and not scheduled for {self.share:.0%} of "
            f"{their} time; {their} CPU is taken by {named}{more}, bound to it and new there; the others lose "
            f"{self.others_share:.0%} in this way"
        )


def find_robbed(
    rounds: Sequence[Sequence[RankTiming]], usual_rounds: Sequence[Sequence[RankTiming]], min_votes: int
) -> Robbed | None:
    """The ranks of one CPU that alone lost it, in at least `min_votes` of the rounds."""
    now, before, host_of = _seen(rounds), _seen(usual_rounds), _hosts(rounds)
    ranks = [rank for rank in now if len(now[rank]) >= min_votes and len(before.get(rank, ())) >= MIN_USUAL]
    if len(ranks) < 2:
        return None
    means = {rank: _mean(now[rank]) for rank in now}
    robbed: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    lost = dict.fromkeys(ranks, 0.0)
    for pid, together in _together(means, host_of):
        if all(_is_new(pid, now[each], _mean(before.get(each, ())), min_votes) for each in together):
            robbed[together].append(pid)
            lost |= {each: lost[each] + means[each][pid] for each in together if each in lost}
    found = max(robbed, key=lambda each: sum(lost.get(rank, 0.0) for rank in each) / len(each), default=())
    others = [lost[each] for each in ranks if each not in found]
    if not found or not others or not set(found) <= set(ranks):
        return None
    pids, others_share = robbed[found], statistics.median(others)
    for rank in found:
        votes = sum(_sum(each, pids) >= MIN_SHARE for each in now[rank])
        if _sum(means[rank], pids) < max(MIN_SHARE, MIN_FACTOR * others_share) or votes < min_votes:
            return None
    names = {each.pid: each.name for timings in rounds for t in timings if t.rank in found for each in t.takers or ()}
    shares = {pid: statistics.fmean(means[rank][pid] for rank in found) for pid in pids}
    takers = sorted((Taken(pid, names[pid], share) for pid, share in shares.items()), key=lambda t: (-t.share, t.pid))
    return Robbed(ranks=found, share=sum(shares.values()), others_share=others_share, takers=tuple(takers))


def _together(means: Mapping[int, _Shares], host_of: Mapping[int, str]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Each process with the ranks of a machine from which it took about as much, if it hardly took from the others."""
    for host in dict.fromkeys(host_of[rank] for rank in means):
        mine = sorted(rank for rank in means if host_of[rank] == host)
        for pid in dict.fromkeys(pid for rank in mine for pid in means[rank]):
            took = {rank: means[rank].get(pid, 0.0) for rank in mine}
            most = max(took.values())
            together = tuple(rank for rank in mine if took[rank] >= AS_MUCH * most)
            is_apart = all(took[rank] * MOSTLY <= most for rank in mine if rank not in together)
            if is_apart and (len(together) == 1 or len(together) < len(mine)):
                yield pid, together


def _is_new(pid: int, now: Sequence[_Shares], before: _Shares, min_votes: int) -> bool:
    """Whether it took from this rank in most rounds, and hardly before."""
    is_steady = sum(pid in each for each in now) >= min_votes
    return is_steady and _mean(now)[pid] >= MOSTLY * before.get(pid, 0.0)


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
    if not rounds:
        return {}
    pids = {pid for each in rounds for pid in each}
    return {pid: sum(each.get(pid, 0.0) for each in rounds) / len(rounds) for pid in pids}


def _sum(shares: _Shares, pids: Collection[int]) -> float:
    return sum(shares.get(pid, 0.0) for pid in pids)
