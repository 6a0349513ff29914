"""Waits between ranks, from flight records: the edges that the rules of `localise` follow. Pure.

A rank that waits in an operation waits for the members of its group that have not entered it. An operation that a peer
has finished waits for no member: all were there, and what keeps this rank is its own.
"""

import functools
import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from everstep.analyzer.observations.positions import STRICT, Positions
from everstep.analyzer.observations.records import Collective, ParallelGroup

Missed = tuple[Collective, ParallelGroup]


class Edges:
    """Waits between ranks at one moment."""

    def __init__(self, positions: Positions, waits: dict[int, list[Collective]]) -> None:
        self.positions = positions
        self.waits = waits
        self.behind: dict[int, set[int]] = defaultdict(set)  # waiting rank -> ranks with a record that lag
        self.unseen: dict[int, set[int]] = defaultdict(set)  # waiting rank -> ranks without a usable record
        self.missed: dict[int, dict[int, Missed]] = defaultdict(dict)  # rank -> which ranks wait for it, and in what
        self.finished: dict[int, list[Missed]] = defaultdict(list)  # rank -> what it waits in and a peer has finished
        self._lag: dict[tuple[str, tuple[int, ...], int], tuple[set[int], set[int]]] = {}
        self._most: dict[tuple[str, tuple[int, ...]], list[tuple[int, int]]] = {}
        for rank, entries in waits.items():
            for entry in entries:
                self._follow(rank, entry)

    def _follow(self, rank: int, entry: Collective) -> None:
        group = self.positions.group(entry.group, rank)
        if self.is_finished(entry, group, rank):
            self.finished[rank].append((entry, group))
            return
        behind, unseen = self._against_peer(rank, entry, group) if entry.is_p2p else self._against_group(entry, group)
        self.behind[rank] |= behind
        self.unseen[rank] |= unseen
        for other in (*behind, *unseen):
            known = self.missed[other].get(rank)
            if known is None or (known[0].is_p2p and not entry.is_p2p):
                self.missed[other][rank] = (entry, group)

    def is_finished(self, entry: Collective, group: ParallelGroup, rank: int) -> bool:
        """Whether a peer has finished an operation that needs all members."""
        if entry.is_p2p or entry.op not in STRICT:
            return False
        return any(other != rank and finished >= entry.seq for other, finished in self._furthest(group))

    def _furthest(self, group: ParallelGroup) -> list[tuple[int, int]]:
        """The two ranks that have finished most, and what. Once per group: thousands of ranks ask."""
        key = (group.name, group.ranks[:1])
        if key not in self._most:
            known = ((rank, self.positions.at(group.name, rank)) for rank in group.ranks)
            finished = [(rank, position.finished) for rank, position in known if position is not None]
            self._most[key] = heapq.nlargest(2, finished, key=lambda each: each[1])
        return self._most[key]

    @functools.cached_property
    def lacking(self) -> frozenset[int]:
        """Identities of the waiting entries in which a rank with a record is behind."""
        return frozenset(
            id(entry)
            for other, listed in self.missed.items()
            if other in self.positions.records
            for entry, _ in listed.values()
        )

    def _against_peer(self, rank: int, entry: Collective, group: ParallelGroup) -> tuple[set[int], set[int]]:
        behind, unseen = set(), set()
        for other in self._peers(rank, entry, group):
            position = self.positions.at(entry.group, other)
            if position is None:
                unseen.add(other)
            elif not any(rank in self._peers(other, pending, group) for pending in position.pending_p2p):
                behind.add(other)
        return behind, unseen

    def _against_group(self, entry: Collective, group: ParallelGroup) -> tuple[set[int], set[int]]:
        """The members that lag, and those without a record. Once per operation, however many ranks wait in it."""
        key = (group.name, group.ranks[:1], entry.seq)
        if key not in self._lag:
            positions = {rank: self.positions.at(group.name, rank) for rank in group.ranks}
            behind = {rank for rank, position in positions.items() if position and position.entered < entry.seq}
            unseen = {rank for rank, position in positions.items() if position is None}
            if not behind and not unseen and not group.complete:
                # gloo does not list the members of a group: one of these must be
                unseen = set(self.positions.missing())
            self._lag[key] = behind, unseen
        return self._lag[key]

    @staticmethod
    def _peers(rank: int, entry: Collective, group: ParallelGroup) -> list[int]:
        places = entry.peer or ()
        return [group.ranks[p] for p in places if p < len(group.ranks) and group.ranks[p] != rank]

    def reached(self, rank: int) -> set[int]:
        """Ranks for which it waits, directly or through others."""
        seen, queue = {rank}, [rank]
        while queue:
            for other in self.behind.get(queue.pop(), ()):
                if other not in seen:
                    seen.add(other)
                    queue.append(other)
        return seen - {rank}

    def order(self, suspects: Iterable[int]) -> tuple[int, ...]:
        """By how many ranks wait for each, directly or through others."""
        wanted = set(suspects)
        blamed: Counter[int] = Counter()
        for rank in self.waits:
            blamed.update(wanted & self.reached(rank))
        return tuple(sorted(wanted, key=lambda rank: (-blamed[rank], rank)))

    def what_missed(self, rank: int) -> Missed | None:
        """The operation in which most ranks wait for this one; of several the collective, then the earliest."""
        listed = self.missed.get(rank)
        if not listed:
            return None
        count = Counter((entry.group, entry.seq, entry.is_p2p) for entry, _ in listed.values())
        return min(
            listed.values(),
            key=lambda m: (-count[m[0].group, m[0].seq, m[0].is_p2p], m[0].is_p2p, m[0].seq, m[1].name),
        )

    def went_past(self, rank: int) -> bool:
        """Whether it left out what others wait for: it entered something that came after it on those others."""
        mine = {(group, seq) for _, group, seq in self._collectives(rank)}
        for waiting, (missed, _) in self.missed.get(rank, {}).items():
            if missed.is_p2p:
                continue
            for record_id, group, seq in self._collectives(waiting):
                if record_id > missed.record_id and group != missed.group and (group, seq) in mine:
                    return True
        return False

    def _collectives(self, rank: int) -> Iterator[tuple[int, str, int]]:
        """`record_id`, group and number of each that the rank's record has."""
        entries = self.positions.records[rank].entries
        for record_id, (kind, seq, _) in zip(entries.record_ids, entries.rows(), strict=True):
            if not entries.kinds[kind].is_p2p:
                yield record_id, entries.kinds[kind].group, seq

    def waiting_in(self, entry: Collective, group: ParallelGroup) -> tuple[int, ...]:
        """Ranks that wait in this very operation."""
        return tuple(
            rank
            for rank, entries in self.waits.items()
            if rank in group.ranks
            and any(e.group == entry.group and e.seq == entry.seq and e.is_p2p == entry.is_p2p for e in entries)
            and (not entry.is_p2p or any(e.is_p2p and e.peer == entry.peer for e in entries))
        )

    def unknown_in(self, entry: Collective, group: ParallelGroup) -> bool:
        """Whether the record of a member is missing."""
        return any(self.positions.at(entry.group, rank) is None for rank in group.ranks)
