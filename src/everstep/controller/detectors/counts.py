"""Whether all replicas did as much in each step. Compares what they counted, step by step.

Covers only ranks whose parameters were seen equal: others may differ by design. A rank that left something out is
reported once, with the program to blame. From then on no machine is accused because of that rank's contents, also after
a restart (its snapshots carry them), until its replicas are seen equal again.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from everstep.analyzer.numbers.counts import Count, compare_counts
from everstep.analyzer.observations.finding import Finding
from everstep.analyzer.observations.records import ParallelGroup
from everstep.controller.detectors.verdicts import verdict_of
from everstep.core.state.phases import Phase
from everstep.core.state.schema import State
from everstep.model.events import AnomalyFound
from everstep.model.facts import RankCounts
from everstep.model.observations import DigestsReported

Ranks = tuple[int, ...]

MAX_STEPS = 4096
"""How many steps to keep until all replicas have reported theirs. Ranks are at most a second apart."""


@dataclass(kw_only=True)
class _LeftOut:
    finding: Finding
    step: int
    generation: int
    is_told: bool = False


class CountDetector:
    def __init__(self) -> None:
        self._replicas: dict[Ranks, None] = {}  # groups that held the same when they were compared, in this run
        self._generation = -1
        self._steps: OrderedDict[int, dict[int, Count]] = OrderedDict()
        self._left_out: dict[int, _LeftOut] = {}  # by rank: what it left out first since its replicas were equal

    def take(self, event: object, state: State) -> tuple[AnomalyFound, ...]:
        """One node's counts; what the steps that they complete show."""
        if not isinstance(event, DigestsReported):
            return ()
        if event.generation != self._generation:
            self._generation = event.generation
            self._steps.clear()
        touched: dict[int, None] = {}
        for counts in event.counts:
            worker = state.workers.get(counts.rank)
            if worker is not None and worker.node == event.node:  # a node speaks for its own ranks
                self._note(counts, touched)
        for step in touched:
            self._compare(step, state, event.at)
        self._forget()
        return self._news(event, state)

    def left_out(self, ranks: Iterable[int]) -> Finding | None:
        """Return what one of these ranks left out, or None. If one left something out, its parameters are the program's
        doing."""
        return next((self._left_out[rank].finding for rank in ranks if rank in self._left_out), None)

    def are_known(self, ranks: Iterable[int], after: int, last: int) -> bool:
        """Whether all of these ranks that count have reported every step after `after`, up to `last`. Frames may be
        lost or late: until they arrive it is unknown whether a rank left something out."""
        counting = {rank for held in self._steps.values() for rank in held}.intersection(ranks)
        first = max(after + 1, min(self._steps, default=0))  # the first step of a process is not counted
        return all(counting <= self._steps.get(step, {}).keys() for step in range(first, last + 1))

    def note_equal(self, ranks: Ranks, step: int) -> None:
        """These replicas hold the same after this step of the current generation: what was left out before is over."""
        self._replicas[ranks] = None
        for rank in ranks:
            left_out = self._left_out.get(rank)
            if left_out is not None and (left_out.generation < self._generation or left_out.step <= step):
                del self._left_out[rank]

    def _note(self, counts: RankCounts, touched: dict[int, None]) -> None:
        left = MAX_STEPS
        for first, number, optimizer, collectives in reversed(counts.runs):  # the newest, where they are too many
            number, left = min(number, left), left - min(number, left)
            for step in range(first, first + number):
                self._steps.setdefault(step, {})[counts.rank] = (optimizer, collectives)
                touched[step] = None

    def _compare(self, step: int, state: State, at: float) -> None:
        held = self._steps.get(step, {})
        for ranks in self._replicas:
            alive = [rank for rank in ranks if (worker := state.workers.get(rank)) is not None and worker.exit is None]
            if len(alive) < 2 or not all(rank in held for rank in alive):
                continue
            group = ParallelGroup(name="replicas", desc="data-parallel replicas", kind="dp", ranks=ranks, complete=True)
            finding = compare_counts({rank: held[rank] for rank in alive}, group, step, at)
            if finding is not None:
                for rank in finding.ranks:
                    self._left_out.setdefault(rank, _LeftOut(finding=finding, step=step, generation=self._generation))

    def _forget(self) -> None:
        while len(self._steps) > MAX_STEPS:
            self._steps.popitem(last=False)

    def _news(self, event: DigestsReported, state: State) -> tuple[AnomalyFound, ...]:
        """At most one finding at a time, and none while the brain is busy: it is reported afterwards."""
        new = [left_out for left_out in self._left_out.values() if not left_out.is_told]
        if not new or state.phase is not Phase.RUNNING or state.incident is not None:
            return ()
        finding = new[0].finding
        for left_out in new:
            left_out.is_told = left_out.finding is finding
        return (AnomalyFound(at=event.at, generation=event.generation, verdict=verdict_of(finding, event.at)),)
