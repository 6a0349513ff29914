"""Ranks whose device or host is stuck, although every rank has entered what the others wait in. Pure; for `localise`.

On NCCL a collective is queued by the host and run by the device, so records in which no rank is behind still show which
rank has not finished what a peer finished, which has not begun what the peers began, and whose host queued least.
"""

from collections import Counter, defaultdict

from everstep.analyzer.flights.edges import Edges, Missed
from everstep.analyzer.observations.positions import Positions
from everstep.analyzer.observations.records import Collective

Oldest = dict[int, Collective]
"""What each rank's device is in, or waits to begin: its first pending operation of all groups."""


def oldest(edges: Edges) -> Oldest:
    return {rank: min(entries, key=lambda entry: entry.record_id) for rank, entries in edges.waits.items()}


def finished_elsewhere(edges: Edges) -> tuple[int, ...]:
    """Ranks that still wait in what a peer has finished, the most such operations first. None when they are more than
    half of the job: then it is the records that differ, not the ranks."""
    positions = edges.positions
    count: Counter[int] = Counter()
    for rank, listed in edges.finished.items():
        count[rank] = sum(
            other != rank
            and (position := positions.at(group.name, other)) is not None
            and position.finished >= entry.seq
            for entry, group in listed
            for other in group.ranks
        )
    ranks = tuple(sorted(count, key=lambda rank: (-count[rank], rank)))
    return ranks if 2 * len(ranks) <= len(positions.world) else ()


def never_started(edges: Edges, first: Oldest) -> tuple[int, ...]:
    """Ranks whose device has only scheduled its oldest operation, while most devices have begun theirs and wait in it.

    A device begins a collective as soon as it gets there, whichever rank is late; a send or receive may be begun by the
    last one of its batch, so it counts only if its peer has begun it."""
    begun = sum(bool(entry.started) for entry in first.values())
    if 2 * begun < len(first):
        return ()
    named = [
        rank
        for rank, entry in first.items()
        if not entry.started and id(entry) not in edges.lacking and _began(edges, rank, entry)
    ]
    return tuple(named) if 2 * len(named) <= len(edges.positions.world) else ()


def _began(edges: Edges, rank: int, entry: Collective) -> bool:
    """Whether a peer has begun the same; for a collective that is assumed if no peer waits in it, unless one has
    finished it."""
    others = partners(edges, rank, entry).values()
    if not others:
        return not entry.is_p2p and not edges.is_finished(entry, edges.positions.group(entry.group, rank), rank)
    return any(theirs.started for theirs in others)


def partners(edges: Edges, rank: int, entry: Collective) -> dict[int, Collective]:
    """The other ranks' entries of the same operation, where they still wait in it."""
    group = edges.positions.group(entry.group, rank)
    found: dict[int, Collective] = {}
    for other in group.ranks:
        position = edges.positions.at(group.name, other) if other != rank else None
        if position is None:
            continue
        if entry.is_p2p:
            theirs = next((e for e in position.pending_p2p if e.peer == entry.peer and e.op != entry.op), None)
        else:
            theirs = edges.positions.called(group.name, other, entry.seq)
        if theirs is not None and not theirs.completed:
            found[other] = theirs
    return found


def host_frontier(edges: Edges, first: Oldest) -> tuple[int, ...]:
    """Ranks whose newest operation is older than a peer's in at least half of the groups that they share, if no rank is
    behind in what the devices are in."""
    if edges.finished or any(id(entry) in edges.lacking for entry in first.values()):
        return ()
    positions = edges.positions
    shared: Counter[int] = Counter()
    behind: Counter[int] = Counter()
    for group in positions.groups.values():
        known = {
            rank: position.entered
            for rank in group.ranks
            if (position := positions.at(group.name, rank)) is not None and position.entered
        }
        if len(known) > 1:
            newest = max(known.values())
            shared.update(known)
            behind.update(rank for rank, entered in known.items() if entered < newest)
    ranks = tuple(sorted((r for r in behind if 2 * behind[r] >= shared[r]), key=lambda r: (-behind[r] / shared[r], r)))
    return ranks if 2 * len(ranks) <= len(positions.world) else ()


_Key = tuple[object, ...]
"""One operation, whichever of its ranks is asked."""


def chain_end(edges: Edges, first: Oldest) -> Missed | None:
    """The operation at which the chains of waiting end: all of its members with a record are in it, and in nothing
    earlier. Of several, the one that most ranks wait for."""
    key_of = {rank: _key(edges, rank, entry) for rank, entry in first.items()}
    ranks_of: defaultdict[_Key, list[int]] = defaultdict(list)
    for rank, key in key_of.items():
        ranks_of[key].append(rank)
    held_by = {key: _held_by(edges, first, key_of, ranks) for key, ranks in ranks_of.items()}
    count: Counter[_Key] = Counter()
    for key, ranks in ranks_of.items():
        for end in _ends(key, held_by):
            count[end] += len(ranks)
    if not count:
        return None
    rank = ranks_of[min(count, key=lambda key: (-count[key], min(ranks_of[key])))][0]
    return first[rank], edges.positions.group(first[rank].group, rank)


def _key(edges: Edges, rank: int, entry: Collective) -> _Key:
    group = edges.positions.group(entry.group, rank)
    return (group.name, group.ranks[:1], entry.is_p2p, entry.peer if entry.is_p2p else entry.seq)


def _held_by(edges: Edges, first: Oldest, key_of: dict[int, _Key], ranks: list[int]) -> set[_Key]:
    """The earlier operations in which members of one still are. All of `ranks` are in that one."""
    others = partners(edges, ranks[0], first[ranks[0]])
    return {key_of[other] for other, theirs in others.items() if other in first and first[other] is not theirs}


def _ends(start: _Key, held_by: dict[_Key, set[_Key]]) -> set[_Key]:
    seen, queue, ends = {start}, [start], set()
    while queue:
        key = queue.pop()
        if not held_by[key]:
            ends.add(key)
        for other in held_by[key] - seen:
            seen.add(other)
            queue.append(other)
    return ends


def is_held_with_all(positions: Positions, edges: Edges, rank: int, roots: set[int]) -> bool:
    """Whether the rank stands in operations that all entered and none finished, together with ranks that wait for no
    other rank either: then the fault is within them, and the records do not show in which."""
    for entry in edges.waits.get(rank, ()):
        group = positions.group(entry.group, rank)
        if edges.is_finished(entry, group, rank):
            continue
        others = partners(edges, rank, entry)
        if others and set(others) <= roots:
            return True
    return False
