"""Finds the rank with data that takes longer to arrive than usual: the link out of its machine became slow. Pure.

All ranks enter the collective in time and wait in it; only the sender's connection shows the cause. A sender is done
when its kernel has the data, a receiver when the last byte has arrived. So the receiver enters the next collective last
and looks slow; it is not accused of what the link explains. A link is reported only if steps became longer by a part of
its delay, as far as that is known.
"""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from everstep.analyzer.observations.records import RankTiming
from everstep.analyzer.observations.words import per_step

MIN_SHARE = 0.08
"""Share of a step, as for a slow machine."""

MIN_S = 0.005
MIN_FACTOR = 2.0
"""Multiple of the usual value: a busy machine makes everything somewhat slower."""

LENGTHENS = 0.5
"""Share of the excess by which steps must have become longer: sending while the ranks compute costs nothing. If data
was lost, `MIN_SHARE` applies instead: resending after a timer makes few steps very long, and a mean leaves those
out."""

SURE_SHARE, SURE_VOTES = 0.25, 3
"""Share of a usual step, with lost segments in each round: not chance, and such rounds take long themselves."""

EXPLAINS = 0.6
"""Share of a rank's excess, as for every other excuse."""


class SlowLink(msgspec.Struct, frozen=True, kw_only=True):
    rank: int  # the sender
    send_s: float  # seconds per step during which its data was on its way
    usual_s: float
    step_s: float
    usual_step_s: float
    lost: int = 0  # lost segments in all of these rounds

    @property
    def excess_s(self) -> float:
        return self.send_s - self.usual_s

    @property
    def says(self) -> str:
        """`data of rank 1 is on its way for 61 ms per step, usually 2 ms; a step takes 120 ms, usually 60 ms`."""
        return (
            f"data of rank {self.rank} is on its way for {per_step(self.send_s)} per step, usually "
            f"{per_step(self.usual_s)}; a step takes {per_step(self.step_s)}, usually {per_step(self.usual_step_s)}"
        )


def explains(link: SlowLink, ranks: Sequence[int], rounds: Sequence[Sequence[RankTiming]]) -> bool:
    """Whether the link explains most of the excess of the first of these ranks over all others."""
    mine, others = [], []
    for timing in (each for timings in rounds for each in timings):
        if timing.rank not in ranks:
            others.append(timing.compute_s)
        elif timing.rank == ranks[0]:
            mine.append(timing.compute_s)
    if not mine or not others:
        return True
    return link.excess_s >= EXPLAINS * (statistics.fmean(mine) - statistics.median(others))


def find_slow_link(
    rounds: Sequence[Sequence[RankTiming]],
    usual_rounds: Sequence[Sequence[RankTiming]],
    min_votes: int,
    *,
    is_slow: bool = False,
) -> SlowLink | None:
    """The rank with the largest growth of sending time, in at least `min_votes` of the rounds. `is_slow`: a rank was
    found slower than the others; steps are then not compared with earlier ones, because other work may have made those
    as long, and the receiver would be accused."""
    usual = {rank: statistics.median(each) for rank, each in _by_rank(usual_rounds).items()}
    before = [step_s for timings in usual_rounds if (step_s := _step_s(timings)) is not None]
    if not usual or not before:
        return None
    usual_step_s = statistics.median(before)
    found = [each for timings in rounds if (each := _worst(timings, usual, usual_step_s, is_slow)) is not None]
    votes = Counter(each.rank for each in found)
    if not votes:
        return None
    rank, count = votes.most_common(1)[0]
    mine = [each for each in found if each.rank == rank]
    is_sure = all(each.lost and each.excess_s >= SURE_SHARE * usual_step_s for each in mine)
    if count < (min(SURE_VOTES, min_votes) if is_sure else min_votes):
        return None
    return msgspec.structs.replace(
        mine[-1],
        lost=sum(each.lost for each in mine),
        send_s=statistics.fmean(each.send_s for each in mine),
        step_s=statistics.fmean(each.step_s for each in mine),
    )


def _worst(
    timings: Sequence[RankTiming], usual: Mapping[int, float], usual_step_s: float, is_slow: bool
) -> SlowLink | None:
    step_s = _step_s(timings)
    known = {t.rank: t.send_s for t in timings if t.send_s is not None and t.rank in usual}
    if step_s is None or not known:
        return None
    rank = max(known, key=lambda each: known[each] - usual[each])
    excess_s = known[rank] - usual[rank]
    if excess_s < max(MIN_S, MIN_SHARE * usual_step_s) or known[rank] < MIN_FACTOR * usual[rank]:
        return None
    # Ranks that wait longer than that for CPUs make steps of any length: then the kernel's clock alone decides.
    waits_s = statistics.median([t.delay_s or 0.0 for t in timings])
    lost = next((t.lost for t in timings if t.rank == rank), None) or 0
    least_s = MIN_SHARE * usual_step_s if lost else LENGTHENS * excess_s
    if not is_slow and step_s - usual_step_s < least_s and waits_s < excess_s:
        return None
    return SlowLink(
        rank=rank, send_s=known[rank], usual_s=usual[rank], step_s=step_s, usual_step_s=usual_step_s, lost=lost
    )


def _by_rank(rounds: Sequence[Sequence[RankTiming]]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for timing in (each for timings in rounds for each in timings):
        if timing.send_s is not None:
            found.setdefault(timing.rank, []).append(timing.send_s)
    return found


def _step_s(timings: Sequence[RankTiming]) -> float | None:
    """Seconds per step in a round; all ranks have one pace."""
    steps = [t.compute_s + t.wait_s for t in timings if t.wait_s is not None]
    return statistics.median(steps) if steps else None
