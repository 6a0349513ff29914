"""Search for the rank that the others wait for, from flight records alone.

Every waiting rank waits for the members of its group that have not entered the same operation. Following these edges
ends at ranks that wait for no other (the culprits), at ranks that left no record (gone, or stopped), or in a circle
(two groups entered in opposite order). A rank that waits itself is never blamed for being behind: torch's own
`torchfrtrace` does that. Before all that, it looks for ranks that called different things at the same place. Where
all have entered, what a device finished or began shows more (`frontier`).

Pure. Called by `combine`; used by the controller and by `everstep analyze`.
"""

from collections.abc import Iterable

from everstep.analyzer.flights import circles, desync, frontier, membership, sisters
from everstep.analyzer.flights.edges import Edges, Missed
from everstep.analyzer.flights.moving import is_alive, is_moving
from everstep.analyzer.flights.telling import called_at, missed_by, says
from everstep.analyzer.observations.finding import Finding
from everstep.analyzer.observations.positions import Positions
from everstep.analyzer.observations.records import Collective, ParallelGroup
from everstep.analyzer.observations.words import operation, ranks_text, verb
from everstep.model.verdict import Confidence


def localise(positions: Positions, at: float) -> list[Finding]:
    """Findings, best first. Empty: no rank waits for anything, or the job moves."""
    waits = {rank: positions.pending(rank) for rank in positions.records}
    waits = {rank: entries for rank, entries in waits.items() if entries}
    if not waits:
        return []
    mismatch = membership.find_mismatch(positions, waits, at) or desync.find_mismatch(positions, waits, at)
    if mismatch:
        return [mismatch]
    edges = Edges(positions, waits)
    if is_moving(positions):
        never = _never_entered(edges, [r for r in _roots(edges) if not is_alive(positions, r)], at)
        return [never] if never else []
    first = frontier.oldest(edges)
    device = frontier.finished_elsewhere(edges)
    never = _never_entered(edges, [rank for rank in _roots(edges, device) if rank not in device], at)
    named = [f for f in (_device(edges, device, at), never) if f]
    if not named:
        named = [f for f in (_started(edges, frontier.never_started(edges, first), first, at),) if f]
    found = [*_merged(named), circles.opposite_order(edges, at)]
    named_ranks = {rank for finding in named for rank in finding.ranks}
    absent = _absent(edges, named_ranks, at)
    found.append(absent and (sisters.find_odd(edges.positions, absent.ranks, at) or absent))
    if not named:
        found.append(_host(edges, frontier.host_frontier(edges, first), at))
        found.append(_stalled(edges, first, at))
    return [f for f in found if f]


def _merged(named: list[Finding]) -> list[Finding]:
    """Two ranks may be broken in different ways at once: one verdict names both, each with its own sentence."""
    if len(named) < 2:
        return named
    device, never = named
    both = Finding(
        code=never.code,
        sentence=f"{never.sentence} {device.sentence}",
        confidence=never.confidence,
        ranks=(*never.ranks, *device.ranks),
        waiting=tuple(rank for rank in never.waiting if rank not in device.ranks),
        group=never.group,
        place=never.place,
        evidence=(*never.evidence, *device.evidence),
    )
    return [both]


def _roots(edges: Edges, device: tuple[int, ...] = ()) -> list[int]:
    """Ranks that others wait for and that wait for no other.

    A rank with pending operations is a root only where all of its groups are declared, and only if it does not stand in
    one of them with nothing but ranks like itself. What a rank of `device` waits in may be over: a rank that only it
    waits for is no root."""
    positions = edges.positions
    awaited = {other for rank, others in edges.behind.items() if rank not in device for other in others}
    awaited = {rank for rank in awaited if rank in positions.records and rank not in positions.stale}
    free = {r for r in awaited if not edges.behind.get(r) and (not edges.unseen.get(r) or edges.went_past(r))}
    return [
        rank
        for rank in sorted(free)
        if rank not in edges.waits
        or (_is_declared(edges, rank) and not frontier.is_held_with_all(positions, edges, rank, free))
    ]


def _is_declared(edges: Edges, rank: int) -> bool:
    groups = {kind.group for kind in edges.positions.records[rank].entries.kinds}
    return all(edges.positions.group(name, rank).complete for name in groups)


def _never_entered(edges: Edges, roots: Iterable[int], at: float) -> Finding | None:
    ranks = edges.order(roots)
    missed = {rank: what for rank in ranks if (what := edges.what_missed(rank)) is not None}
    if not missed:
        return None
    first, group = missed[ranks[0]]
    unknown = any(edges.unknown_in(*what) for what in missed.values())
    return Finding(
        code="ES-H02",
        sentence=missed_by(edges, missed),
        confidence=Confidence.MEDIUM if unknown else Confidence.HIGH,
        ranks=ranks,
        waiting=tuple(sorted(set(edges.waits) - set(ranks))),
        group=group,
        evidence=(
            says(at, f"{ranks_text(edges.waiting_in(first, group))} pending in {operation(first, group)}"
                     f"{called_at(first)}"),
            *(says(at, f"last operation of rank {rank}: {_last_entered(edges, rank)}", rank) for rank in ranks[1:8]),
            says(at, f"last operation of rank {ranks[0]}: {_last_entered(edges, ranks[0])}", ranks[0]),
        ),
    )  # fmt: skip


def _last_entered(edges: Edges, rank: int) -> str:
    entries = edges.positions.records[rank].entries
    if not entries:
        return "nothing pending" if edges.positions.records[rank].status else "none"
    state = "completed" if entries[-1].completed else "pending"
    group = edges.positions.group(entries[-1].group, rank)
    return f"{operation(entries[-1], group)}, {state}{called_at(entries[-1])}"


def _device(edges: Edges, ranks: tuple[int, ...], at: float) -> Finding | None:
    if not ranks:
        return None
    held = {rank: min(edges.finished[rank], key=lambda m: m[0].record_id) for rank in ranks}
    entry, group = held[ranks[0]]
    listed = "; ".join(
        f"rank {rank} has not finished {operation(e, g)}, which {_who_finished(edges, rank, (e, g))} finished"
        for rank, (e, g) in list(held.items())[:8]
    )
    return Finding(
        code="ES-H18",
        sentence=f"{listed}: {verb(ranks, 'its device stands', 'their devices stand')}, or what watches "
        f"{verb(ranks, 'it', 'them')}.",
        confidence=Confidence.HIGH,
        ranks=ranks,
        waiting=tuple(sorted(set(edges.waits) - set(ranks))),
        group=group,
        evidence=tuple(
            says(
                at,
                f"pending in {operation(e, g)}{called_at(e)}, finished by {_who_finished(edges, rank, (e, g))}",
                rank,
            )
            for rank, (e, g) in list(held.items())[:16]
        ),
        place=entry.place,
    )


def _who_finished(edges: Edges, rank: int, what: Missed) -> str:
    entry, group = what
    return ranks_text(
        other
        for other in group.ranks
        if other != rank
        and (position := edges.positions.at(group.name, other)) is not None
        and position.finished >= entry.seq
    )


def _started(edges: Edges, ranks: tuple[int, ...], first: frontier.Oldest, at: float) -> Finding | None:
    if not ranks:
        return None
    parts = []
    for rank in ranks[:8]:
        entry = first[rank]
        what = operation(entry, edges.positions.group(entry.group, rank))
        begun = [other for other, theirs in frontier.partners(edges, rank, entry).items() if theirs.started]
        others = f"which {ranks_text(begun)} did" if begun else "while most ranks have begun what they wait in"
        parts.append(f"rank {rank} has queued {what} and not begun it, {others}")
    entry = first[ranks[0]]
    return Finding(
        code="ES-H18",
        sentence=f"{'; '.join(parts)}: {verb(ranks, 'its device stands', 'their devices stand')} before it.",
        confidence=Confidence.MEDIUM,
        ranks=ranks,
        waiting=tuple(sorted(set(edges.waits) - set(ranks))),
        group=edges.positions.group(entry.group, ranks[0]),
        place=entry.place,
        evidence=tuple(says(at, part) for part in parts),
    )


def _host(edges: Edges, ranks: tuple[int, ...], at: float) -> Finding | None:
    if not ranks:
        return None
    listed = "; ".join(f"last operation of rank {rank}: {_last_entered(edges, rank)}" for rank in ranks[:8])
    return Finding(
        code="ES-H18",
        sentence=f"{ranks_text(ranks)} queued fewer operations than {verb(ranks, 'its', 'their')} peers in most "
        f"groups, and no rank is behind in what the devices are in: {verb(ranks, 'it', 'they')} stopped first.",
        confidence=Confidence.MEDIUM,
        ranks=ranks,
        waiting=tuple(sorted(set(edges.waits) - set(ranks))),
        evidence=(says(at, listed),),
    )


def _absent(edges: Edges, named: set[int], at: float) -> Finding | None:
    """Ranks without a record, where no rank with one explains the wait."""
    positions = edges.positions
    unseen = {
        other
        for rank, others in edges.unseen.items()
        if not named & ({rank} | edges.reached(rank))
        for other in others
        if other not in positions.stale and not (named and _shares_group(positions, other, named))
    }
    missed = {rank: what for rank in sorted(unseen) if (what := edges.what_missed(rank)) is not None}
    if not missed:
        return None
    ranks = tuple(missed)
    entry, group = missed[ranks[0]]
    waiting = edges.waiting_in(entry, group)
    return Finding(
        code="ES-H10",
        sentence=f"{ranks_text(ranks)} left no flight record, and {ranks_text(waiting)} "
        f"{verb(waiting, 'waits', 'wait')} in {operation(entry, group)}, which everyone else entered.",
        confidence=Confidence.MEDIUM if len(ranks) == 1 else Confidence.LOW,
        ranks=ranks,
        waiting=tuple(sorted(edges.waits)),
        group=group,
        evidence=(says(at, f"{ranks_text(waiting)} pending in {operation(entry, group)}{called_at(entry)}"),),
    )


def _shares_group(positions: Positions, rank: int, named: set[int]) -> bool:
    """Such a rank most likely waits for the named one itself."""
    return any(
        group.complete and rank in group.ranks and named & set(group.ranks) for group in positions.groups.values()
    )


def _stalled(edges: Edges, first: frontier.Oldest, at: float) -> Finding | None:
    full = [r for r in edges.waits if not edges.behind.get(r) and not edges.unseen.get(r) and not edges.finished.get(r)]
    if not full:
        return None
    rank = min(full, key=lambda r: (-len(edges.positions.group(edges.waits[r][0].group, r).ranks), r))
    entry: Collective = edges.waits[rank][0]
    group = edges.positions.group(entry.group, rank)
    if group.ranks == (rank,) and not group.complete:
        return circles.alone(edges, at, rank, entry, group)
    end = frontier.chain_end(edges, {r: first[r] for r in first if r in full})
    entry, group = end if end is not None else (entry, group)
    return Finding(
        code="ES-H11",
        sentence=f"{_all_of(entry, group)} entered {operation(entry, group)} with the same arguments, and it does not "
        "complete: no rank is behind, look at the network between them.",
        confidence=Confidence.LOW,
        waiting=tuple(sorted(edges.waits)),
        group=group,
        evidence=(says(at, f"{ranks_text(edges.waits)} pending, no rank behind"),),
    )


def _all_of(entry: Collective, group: ParallelGroup) -> str:
    return "both ranks" if entry.is_p2p else f"all ranks of {group.title}"
