"""Sentences of findings from flight records, each true of every rank that it names. Pure; for `localise`."""

from collections.abc import Mapping

from everstep.analyzer.flights.edges import Edges, Missed
from everstep.analyzer.observations.records import Collective
from everstep.analyzer.observations.words import operation, ranks_text, verb
from everstep.model.verdict import Evidence

MAX_TOLD = 8


def missed_by(edges: Edges, missed: Mapping[int, Missed]) -> str:
    """`rank 9 never entered all_reduce #6 in tp; rank 8 waits there.` for each missed operation."""
    ranks_of: dict[tuple[object, ...], list[int]] = {}
    what_of: dict[tuple[object, ...], Missed] = {}
    for rank, (entry, group) in missed.items():
        key: tuple[object, ...] = (group.name, group.ranks[:1], entry.seq, entry.peer)
        ranks_of.setdefault(key, []).append(rank)
        what_of.setdefault(key, (entry, group))
    parts = []
    for key, ranks in list(ranks_of.items())[:MAX_TOLD]:
        entry, group = what_of[key]
        waiting = edges.waiting_in(entry, group)
        never = "never posted its side of" if entry.is_p2p else "never entered"
        there = f"{ranks_text(waiting)} {verb(waiting, 'waits', 'wait')} there"
        parts.append(f"{ranks_text(ranks)} {never} {operation(entry, group)}; {there}.")
    return " ".join(parts)


def called_at(entry: Collective) -> str:
    """`, called at train.py:7 step`, where the record says it."""
    return f", called at {entry.place}" if entry.place else ""


def says(at: float, text: str, rank: int | None = None) -> Evidence:
    """Evidence of a flight record."""
    return Evidence(at=at, source="flight record", says=text, rank=rank)
