"""Ranks that wait for each other in a circle, and a rank alone in a group. Pure; for `localise`."""

from collections import Counter

from everstep.analyzer.flights import desync
from everstep.analyzer.flights.edges import Edges
from everstep.analyzer.flights.telling import called_at, says
from everstep.analyzer.observations.finding import Finding
from everstep.analyzer.observations.records import Collective, ParallelGroup
from everstep.analyzer.observations.words import operation, ranks_text, verb
from everstep.model.verdict import Confidence


def opposite_order(edges: Edges, at: float) -> Finding | None:
    circle = _circle(edges)
    if not circle:
        return None
    habits = {rank: _left_habit(edges, rank) for rank in circle}
    blamed = Counter(other for others in edges.behind.values() for other in others)
    ranks = tuple(sorted(circle, key=lambda rank: (not habits[rank], -blamed[rank], rank)))
    culprits = [rank for rank in ranks if habits[rank]]
    places = [(rank, e, edges.positions.group(e.group, rank)) for rank in ranks for e in edges.waits[rank][:1]]
    listed = "; ".join(f"rank {rank} waits in {operation(e, group)}" for rank, e, group in places[:4])
    clear = len(culprits) == 1 or blamed[ranks[0]] > blamed[ranks[1]]
    sentence = (
        f"{ranks_text(ranks)} entered collectives of different groups in opposite order and wait for each other: "
        f"{listed}."
    )
    what = edges.what_missed(ranks[0])
    if len(culprits) == 1 and what is not None:
        entry, group = what
        waiting = edges.waiting_in(entry, group)
        sentence = (
            f"rank {ranks[0]} left out or put off {operation(entry, group)}, unlike in its earlier steps; "
            f"{ranks_text(waiting)} {verb(waiting, 'waits', 'wait')} there, and {listed.partition(';')[0]}."
        )
    return Finding(
        code="ES-H05",
        sentence=sentence,
        confidence=Confidence.HIGH if clear else Confidence.MEDIUM,
        ranks=ranks,
        waiting=tuple(sorted(set(edges.waits) - set(ranks))),
        group=places[0][2],
        evidence=tuple(
            says(
                at,
                f"pending in {operation(e, group)}{called_at(e)}"
                + (", not what its own earlier steps did" if habits[rank] else "")
                + f"; {blamed[rank]} waiting for it",
                rank,
            )
            for rank, e, group in places[:16]
        ),
    )


def _left_habit(edges: Edges, rank: int) -> bool:
    """Whether it did something else than in its earlier steps, where others wait for it or at the end."""
    record = edges.positions.records[rank]
    what = edges.what_missed(rank)
    awaited = what[0].group if what is not None else edges.waits[rank][0].group
    return desync.left_habit(record, awaited) or bool(desync.breaks_habit(record, edges.waits[rank][0]))


def _circle(edges: Edges) -> set[int]:
    """Ranks that wait for themselves through others."""
    circle: set[int] = set()
    for start in edges.waits:
        seen: set[int] = set()
        queue = list(edges.behind.get(start, ()))
        while queue:
            rank = queue.pop()
            if rank not in seen:
                seen.add(rank)
                queue.extend(edges.behind.get(rank, ()))
        if start in seen:
            circle.add(start)
    return circle


def alone(edges: Edges, at: float, rank: int, entry: Collective, group: ParallelGroup) -> Finding | None:
    """A rank in a group in which no other rank was ever seen. A group of one waits for no other rank, so others belong
    to it and wait elsewhere. The records do not show which rank should have come: none is blamed."""
    waiting = tuple(sorted(other for other, behind in edges.behind.items() if rank in behind))
    if not waiting:
        return None
    what = edges.what_missed(rank)
    assert what is not None
    missed, where = what
    return Finding(
        code="ES-H05",
        sentence=f"rank {rank} waits in {operation(entry, group)}, which no other rank entered, and "
        f"{ranks_text(waiting)} {verb(waiting, 'waits', 'wait')} for it in {operation(missed, where)}.",
        confidence=Confidence.LOW,
        waiting=tuple(sorted({rank, *waiting})),
        group=where,
        evidence=(says(at, f"pending in {operation(entry, group)}{called_at(entry)}, alone", rank),),
    )
