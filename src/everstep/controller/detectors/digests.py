"""Whether all data-parallel replicas hold the same parameters. Compares the digests of one step, bit by bit.

Replica groups are declared (DDP's process group), or learned: ranks whose digests were equal twice and changed in
between. Digests of a step are compared when all live ranks concerned have sent theirs. A group that was never seen
equal is a case of its own. A difference is reported once; again after the group was equal in between, or in another
generation.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Set
from typing import TypeAlias

import msgspec

from everstep.analyzer.numbers.digests import compare
from everstep.analyzer.observations.finding import Finding
from everstep.analyzer.observations.records import ParallelGroup
from everstep.controller.detectors.counts import CountDetector
from everstep.controller.detectors.repeats import Repeats
from everstep.controller.detectors.verdicts import verdict_of
from everstep.core.state.phases import Phase
from everstep.core.state.schema import State
from everstep.model.events import AnomalyFound
from everstep.model.facts import RankDigest
from everstep.model.observations import DigestsReported
from everstep.model.verdict import Evidence

MAX_GROUPS = 4096
"""Groups of replicas that are declared in one generation."""

MAX_STEPS = 4
"""Digests of so many steps are kept. Ranks are never apart by more than one; a frame may be lost."""

MAX_UNCOUNTED = 2
"""Digests for which what the ranks did meanwhile is waited for."""

MAX_ENDED = 64
"""Ranks of a group that may have ended, as some do earlier than others at the end of a run."""

MAX_RANKS = 1 << 20

Ranks: TypeAlias = tuple[int, ...]
Declared: TypeAlias = tuple[Ranks, int]
"""As digests carry it: replicas and stride. Short, where the ranks themselves may be ten thousand."""
Whole: TypeAlias = tuple[tuple[str, str], ...]
"""All that a rank holds."""

log = logging.getLogger("everstep.controller")


class DigestDetector:
    def __init__(
        self, counts: CountDetector | None = None, *, are_numbers_lost: Callable[[float], bool] = lambda at: False
    ) -> None:
        """`counts`: what ranks did in each step; it takes each report before this watch does. `are_numbers_lost`:
        whether parameters are NaN, which is already reported; their bits prove nothing then."""
        self._counts = counts or CountDetector()
        self._are_numbers_lost = are_numbers_lost
        self._generation = -1
        self._steps: dict[int, dict[Declared, dict[int, RankDigest]]] = {}  # by step, group and rank
        self._groups: dict[Declared, Ranks] = {}
        self._compared: set[tuple[int, Declared]] = set()
        self._equal_at: dict[Ranks, int] = {}  # newest step, of the whole run: a restart makes no replicas differ
        self._history: dict[int, list[Whole]] = {}  # last two of each rank without declared replicas
        self._equal: dict[int, set[int]] = {}  # step -> ranks that hold the same as all of their replicas
        self._partial: set[int] = set()  # steps with a digest that does not cover all parameters
        self._bad: set[tuple[str, Ranks]] = set()
        self._said: set[tuple[int, str]] = set()
        self._uncounted: dict[Ranks, int] = {}  # comparisons in a row that waited for counts
        self._repeats = Repeats()

    def take(self, event: object, state: State) -> tuple[AnomalyFound, ...]:
        """One node's digests; what the comparisons that they complete show."""
        if not isinstance(event, DigestsReported):
            return ()
        if event.generation != self._generation:
            self._begin(event.generation)
        found: list[AnomalyFound] = []
        for digest in event.digests:
            self._say_missing(digest)
            if digest.missing:
                self._partial.add(digest.step)
            if not digest.values:
                continue
            declared = (digest.replicas, digest.stride)
            if not self._is_of_job(declared, state):
                continue
            held = self._steps.setdefault(digest.step, {}).setdefault(declared, {})
            if digest.rank in held and held[digest.rank].values != digest.values:
                self._begin_anew(digest.step, declared)
            held[digest.rank] = _share(digest, held)
            for finding, group in self._compare(digest.step, declared, held, state, event.at):
                # Asked first: what is not reported now is still news when numbers are fine again.
                if self._are_numbers_lost(event.at) or self._waits_for_more(finding, group, digest.step):
                    continue
                if self._is_news(finding, group, state):
                    found.append(self._anomaly(finding, event.at, is_declared=bool(self._ranks(declared))))
        self._forget()
        return tuple(found[:1])

    def _is_of_job(self, declared: Declared, state: State) -> bool:
        """A rank that makes up ranks or ever new groups must not grow what is remembered here."""
        if declared in self._groups:
            return True
        world = len(state.workers)
        return len(self._groups) < MAX_GROUPS and all(0 <= rank < world for rank in declared[0])

    def equal_at(self, step: int) -> Set[int]:
        """Ranks of which it is known that they hold the same as their replicas after this step; none where a digest was
        left out in part."""
        return frozenset() if step in self._partial else self._equal.get(step, frozenset())

    def equal_steps(self) -> list[int]:
        """Steps of which something is known, newest first."""
        return sorted(self._equal, reverse=True)

    def _begin_anew(self, step: int, declared: Declared) -> None:
        """Forget the old digests of this step number: the program counts its steps anew. Reports sent again are equal
        and do not lead here."""
        self._steps[step] = self._steps.pop(step)
        self._steps[step][declared].clear()
        self._compared.discard((step, declared))
        self._equal.pop(step, None)
        self._partial.discard(step)

    def _forget(self) -> None:
        """Drop the steps that were seen first: a program that counts its steps anew begins with low numbers again."""
        gone = list(self._steps)[:-MAX_STEPS]
        for step in gone:
            del self._steps[step]
            self._equal.pop(step, None)
        if gone:
            self._partial &= set(self._steps)
            self._compared = {(step, declared) for step, declared in self._compared if step in self._steps}

    def _begin(self, generation: int) -> None:
        self._generation = generation
        self._repeats.begin()
        self._steps.clear()
        self._compared.clear()
        self._equal.clear()
        self._partial.clear()
        self._groups.clear()
        self._history.clear()
        self._bad.clear()
        self._uncounted.clear()

    def _ranks(self, declared: Declared) -> Ranks:
        """The ranks that should hold the same; () if none are declared."""
        known = self._groups.get(declared)
        if known is None:
            ranks, stride = declared
            if stride > 0 and len(ranks) == 2:
                ranks = tuple(range(ranks[0], min(ranks[1], ranks[0] + MAX_RANKS * stride) + 1, stride))
            known = self._groups[declared] = tuple(sorted(set(ranks)))
        return known

    def _compare(
        self, step: int, declared: Declared, held: dict[int, RankDigest], state: State, at: float
    ) -> Iterator[tuple[Finding, Ranks]]:
        ranks = self._ranks(declared)
        if (step, declared) in self._compared or not _is_complete(ranks, held, state):
            return
        self._compared.add((step, declared))
        if ranks:
            yield from self._judge(held, ranks, at, ranks in self._equal_at)
        else:
            for learned in self._learned(held):
                yield from self._judge(held, learned, at, True)

    def _judge(
        self, held: dict[int, RankDigest], ranks: Ranks, at: float, were_equal: bool
    ) -> Iterator[tuple[Finding, Ranks]]:
        members = [held[rank] for rank in ranks if rank in held]
        group = ParallelGroup(name="replicas", desc="data-parallel replicas", kind="dp", ranks=ranks, complete=True)
        finding = compare(members, group, at, were_equal=were_equal)
        if finding is not None:
            yield self._repeats.doubt(_since(finding, self._equal_at.get(ranks), at), held, at), ranks
        elif len(members) > 1:
            self._equal_at[ranks] = members[0].step
            self._counts.note_equal(ranks, members[0].step)
            self._equal.setdefault(members[0].step, set()).update(held.keys() & set(ranks))
            self._bad = {(code, bad) for code, bad in self._bad if bad != ranks}

    def _learned(self, digests: dict[int, RankDigest]) -> list[Ranks]:
        """Groups of ranks that were equal at the last two digests. Then these are the last two."""
        groups: defaultdict[tuple[Whole, ...], list[int]] = defaultdict(list)
        for rank in sorted(digests):
            history = self._history.setdefault(rank, [])
            if len(history) == 2 and history[0] != history[1]:
                groups[tuple(history)].append(rank)
            history.append(tuple(sorted(digests[rank].values.items())))
            del history[:-2]
        return [tuple(ranks) for ranks in groups.values() if len(ranks) > 1]

    def _waits_for_more(self, finding: Finding, group: Ranks, step: int) -> bool:
        return self._waits_for_counts(group, step) or self._repeats.is_early(finding, step)

    def _waits_for_counts(self, ranks: Ranks, step: int) -> bool:
        """Whether to wait for counts before accusing a machine: what a rank left out is the program's fault.

        Replicas that differ will differ at the next digest. The wait is bounded, because lost frames never arrive."""
        equal_at = self._equal_at.get(ranks)
        if equal_at is None or self._counts.are_known(ranks, equal_at, step):
            self._uncounted.pop(ranks, None)
            return False
        self._uncounted[ranks] = self._uncounted.get(ranks, 0) + 1
        return self._uncounted[ranks] <= MAX_UNCOUNTED

    def _is_news(self, finding: Finding, ranks: Ranks, state: State) -> bool:
        if state.phase is not Phase.RUNNING or state.incident is not None:
            return False  # the brain is busy; replicas that differ will differ at the next digest
        if self._counts.left_out(ranks) is not None:
            return False  # what it holds is the program's doing, and known
        key = finding.code, ranks
        is_new = key not in self._bad
        self._bad.add(key)
        return is_new

    def _anomaly(self, finding: Finding, at: float, *, is_declared: bool) -> AnomalyFound:
        verdict = verdict_of(finding, at)
        return AnomalyFound(at=at, generation=self._generation, verdict=verdict, is_declared=is_declared)

    def _say_missing(self, digest: RankDigest) -> None:
        if digest.missing and (digest.rank, digest.missing) not in self._said:
            self._said.add((digest.rank, digest.missing))
            log.info("digests of rank %d: %s", digest.rank, digest.missing)


def _since(finding: Finding, step: int | None, at: float) -> Finding:
    if step is None:
        return finding
    equal = Evidence(at=at, source="digest", says=f"all replicas were equal at step {step}")
    return msgspec.structs.replace(finding, evidence=(*finding.evidence, equal))


def _share(digest: RankDigest, held: dict[int, RankDigest]) -> RankDigest:
    """Replicas hold the same, so it need be kept only once."""
    first = next(iter(held.values()), None)
    if first is None or first.values != digest.values:
        return digest
    return msgspec.structs.replace(digest, values=first.values)


def _is_complete(ranks: Ranks, held: dict[int, RankDigest], state: State) -> bool:
    """Whether all live ranks concerned have given theirs. Who ended is asked only when few are missing: thousands of
    digests come at once, and asking looks at every rank."""
    num_missing = len(ranks or state.workers) - len(held)
    if not 0 < num_missing <= MAX_ENDED:
        return num_missing <= 0
    workers = state.workers
    return not any(rank in workers and workers[rank].exit is None and rank not in held for rank in ranks or workers)
