"""Finds machines with so much to run that a slow rank cannot be distinguished from an unlucky one. Pure.

The report says what the fail-slow vote cannot see there, and why.
"""

import statistics
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from everstep.analyzer.observations.records import RankTiming
from everstep.analyzer.observations.words import per_step, ranks_text

MOST = 0.5
"""Share of its time between collectives that a rank waits for a CPU."""


class Overload(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    ranks: tuple[int, ...]
    wait_s: float  # per step, for a CPU
    step_s: float  # between its collectives

    @property
    def says(self) -> str:
        who = ranks_text(self.ranks)
        return (
            f"the machine of {who} has more to run than CPUs: of {per_step(self.step_s)} per step they wait "
            f"{per_step(self.wait_s)} for one"
        )


def find_overload(rounds: Sequence[Sequence[RankTiming]], min_votes: int) -> Overload | None:
    """The machine on which all ranks wait for a CPU most of their time, in at least `min_votes` rounds; the worst if
    there are several."""
    by_host: defaultdict[str, defaultdict[int, list[RankTiming]]] = defaultdict(lambda: defaultdict(list))
    for timing in (each for timings in rounds for each in timings):
        by_host[timing.host][timing.rank].append(timing)
    found = []
    for host, ranks in by_host.items():
        if host and all(sum(map(_waits, mine)) >= min_votes for mine in ranks.values()):
            every = [each for mine in ranks.values() for each in mine]
            wait_s = statistics.fmean(each.delay_s or 0.0 for each in every)
            step_s = statistics.fmean(each.compute_s for each in every)
            found.append(Overload(host=host, ranks=tuple(sorted(ranks)), wait_s=wait_s, step_s=step_s))
    return max(found, key=lambda each: each.wait_s / each.step_s, default=None)


def _waits(timing: RankTiming) -> bool:
    return timing.delay_s is not None and timing.delay_s >= MOST * timing.compute_s > 0
