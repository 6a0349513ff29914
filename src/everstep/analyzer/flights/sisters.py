"""Groups of one kind do the same at the same place: which rank differs from them, if its own peer left no record. Pure.

A rank that skipped an operation called something else than its peers. Without the peers' records nothing in its own
group shows that; the other groups of that kind do.
"""

from collections.abc import Iterable

from everstep.analyzer.observations.finding import Finding
from everstep.analyzer.observations.positions import Positions
from everstep.analyzer.observations.records import Collective, ParallelGroup
from everstep.analyzer.observations.words import operation, ranks_text
from everstep.model.verdict import Confidence, Evidence

LEAST_SISTERS = 2
"""Stages of a pipeline differ from each other; several groups that agree are replicas."""


def find_odd(positions: Positions, missing: Iterable[int], at: float) -> Finding | None:
    """A rank with a record whose group holds one without, and that stands in another operation than all sisters."""
    absent = set(missing)
    for group in positions.groups.values():
        if not group.complete or not group.desc or not absent & set(group.ranks):
            continue
        for rank in group.ranks:
            peers = sorted(absent & set(group.ranks))
            odd = _odd(positions, group, rank)
            if odd is not None:
                return _finding(group, rank, *odd, peers, at)
            left_out = _left_out(positions, group, rank)
            if left_out is not None:
                return _skipped(group, rank, *left_out, peers, at)
    return None


def _odd(positions: Positions, group: ParallelGroup, rank: int) -> tuple[Collective, Collective, int] | None:
    """Return the operation that the rank waits in, the one that its sisters called there, and the number of sisters.
    None: no such difference is known."""
    position = positions.at(group.name, rank)
    if position is None or not position.pending:
        return None
    mine = position.pending[0]
    sisters = _sisters(positions, group)
    called = [entry for one in sisters if (entry := _called(positions, one, mine.seq)) is not None]
    same = {(entry.op, entry.input_sizes) for entry in called}
    if len(called) < LEAST_SISTERS or len(called) < len(sisters) or len(same) != 1:
        return None
    return (mine, called[0], len(called)) if (mine.op, mine.input_sizes) not in same else None


def _left_out(positions: Positions, group: ParallelGroup, rank: int) -> tuple[int, int] | None:
    """The number that all sisters entered and this rank did not, although it waits with them in a later operation, and
    how many sisters there are."""
    position, waits = positions.at(group.name, rank), positions.pending(rank)
    others = [other for one in _sisters(positions, group) for other in one.ranks]
    known = [
        (each, positions.pending(other))
        for one in _sisters(positions, group)
        for other in one.ranks
        if (each := positions.at(one.name, other)) is not None
    ]
    if position is None or position.pending or not waits or len(known) < len(others):
        return None
    if len(_sisters(positions, group)) < LEAST_SISTERS:
        return None
    newest = {each.entered for each, _ in known}
    together = {(entry.group, entry.seq) for entry in waits}
    is_with_them = all(together & {(entry.group, entry.seq) for entry in theirs} for _, theirs in known)
    if len(newest) != 1 or not is_with_them or position.entered >= min(newest):
        return None
    return position.entered + 1, len(_sisters(positions, group))


def _sisters(positions: Positions, group: ParallelGroup) -> list[ParallelGroup]:
    return [one for one in positions.groups.values() if _is_sister(one, group)]


def _is_sister(one: ParallelGroup, group: ParallelGroup) -> bool:
    alike = (one.desc, one.kind, len(one.ranks)) == (group.desc, group.kind, len(group.ranks))
    return alike and one.complete and not set(one.ranks) & set(group.ranks)


def _called(positions: Positions, group: ParallelGroup, seq: int) -> Collective | None:
    """Return the operation that this group called at that place; None where its ranks differ or nothing is known."""
    known = [entry for rank in group.ranks if (entry := positions.called(group.name, rank, seq)) is not None]
    return known[0] if known and len({(entry.op, entry.input_sizes) for entry in known}) == 1 else None


def _finding(
    group: ParallelGroup, rank: int, mine: Collective, usual: Collective, num: int, absent: list[int], at: float
) -> Finding:
    says = f"rank {rank} pending in {operation(mine, group)}, where {num} other groups of its kind called {usual.op}"
    return Finding(
        code="ES-H03",
        sentence=f"rank {rank} called {operation(mine, group)} where the {num} other groups of its kind called "
        f"{usual.op} {list(usual.input_sizes)}; its peer {ranks_text(absent)} left no flight record.",
        confidence=Confidence.MEDIUM,
        ranks=(rank,),
        group=group,
        evidence=(Evidence(at=at, source="flight record", says=says, rank=rank),),
    )


def _skipped(group: ParallelGroup, rank: int, seq: int, num: int, absent: list[int], at: float) -> Finding:
    says = f"rank {rank} never entered #{seq} in {group.title}, and waits where the {num} other groups of its kind are"
    return Finding(
        code="ES-H02",
        sentence=f"{says}: it left that one out. Its peer {ranks_text(absent)} left no flight record.",
        confidence=Confidence.MEDIUM,
        ranks=(rank,),
        group=group,
        evidence=(Evidence(at=at, source="flight record", says=says, rank=rank),),
    )
