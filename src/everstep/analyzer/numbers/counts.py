"""Search for the replica that left something out of a step, from the counts of that step. Pure.

Replicas take the same optimizer steps and enter the same collectives in each loop step. A replica that does not runs
another program there (a `continue`, a skipped update): the program is at fault, on any machine.
"""

from collections import Counter
from collections.abc import Mapping

from everstep.analyzer.observations.finding import Finding
from everstep.analyzer.observations.records import ParallelGroup
from everstep.analyzer.observations.words import ranks_text
from everstep.model.verdict import Confidence, Evidence

Count = tuple[int, int]
"""Optimizer steps and collectives of one step; collectives are -1 where they are not counted."""

MAX_NAMED = 8


def compare_counts(counts: Mapping[int, Count], replicas: ParallelGroup, step: int, at: float) -> Finding | None:
    """None: all did the same, as far as it was counted."""
    steps = {rank: count[0] for rank, count in counts.items()}
    ranks = _odd(steps)
    if ranks:
        other = next(steps[rank] for rank in steps if rank not in ranks)
        says = f"{_times(steps[ranks[0]])} at step {step}, where the other replicas took {_times(other)}"
        return _finding(counts, replicas, ranks, says, at)
    moved = {rank: count[1] for rank, count in counts.items()}
    ranks = _odd(moved) if min(moved.values(), default=-1) >= 0 else ()
    usual = next((moved[rank] for rank in moved if rank not in ranks), 0)
    # Without a loop of ours a step is an optimizer step: the collectives of two and the update of one.
    doubled = tuple(rank for rank in ranks if usual > 0 and moved[rank] >= 2 * usual and moved[rank] % usual == 0)
    if not doubled:
        return None
    says = (
        f"one optimizer step for {moved[doubled[0]]} collectives at step {step}, where the other replicas took one for "
        f"{usual}"
    )
    return _finding(counts, replicas, doubled, says, at)


def _times(number: int) -> str:
    return "no optimizer step" if number == 0 else f"{number} optimizer step{'s' * (number > 1)}"


def _odd(values: Mapping[int, int]) -> tuple[int, ...]:
    """Ranks that differ from the strict majority; without one, those that did the least."""
    ranking = Counter(values.values()).most_common()
    if len(ranking) < 2:
        return ()
    usual = ranking[0][0] if 2 * ranking[0][1] > len(values) else max(values.values())
    return tuple(sorted(rank for rank, value in values.items() if value != usual))


def _finding(
    counts: Mapping[int, Count], replicas: ParallelGroup, ranks: tuple[int, ...], says: str, at: float
) -> Finding:
    listed = tuple(
        Evidence(
            at=at,
            source="counts",
            says=f"{count[0]} optimizer steps, {count[1] if count[1] >= 0 else 'unknown'} collectives",
            rank=rank,
        )
        for rank, count in sorted(counts.items(), key=lambda item: (item[0] not in ranks, item[0]))[:MAX_NAMED]
    )
    return Finding(
        code="ES-N08",
        sentence=f"{ranks_text(ranks)} took {says}: the program left an update out there, so the replicas differ from "
        "then on.",
        confidence=Confidence.HIGH,
        ranks=ranks,
        group=replicas,
        evidence=listed,
    )
