"""Where every rank stands in every process group, from the flight records of all ranks. Pure; used by `localise`.

A rank's ring buffer may have dropped what is old: a group of which it shows nothing is then unknown, not "never used".
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from everstep.analyzer.observations import groups as process_groups
from everstep.analyzer.observations.records import Collective, Entries, FlightRecord, GroupStatus, ParallelGroup

STRICT = frozenset({
    "all_reduce", "allreduce", "all_gather", "_all_gather_base", "all_gather_single", "reduce_scatter",
    "_reduce_scatter_base", "reduce_scatter_single", "barrier", "all_reduce_barrier", "all_to_all", "all_to_all_single",
})  # fmt: skip
"""Operations that no rank completes before all have entered. A broadcast's source may, and a reduce's leaf."""


class Position(msgspec.Struct, kw_only=True):
    """One rank in one group."""

    entered: int = 0  # newest sequence number
    finished: int = 0  # newest one that the rank is known to have finished, by entry or by status
    is_stated: bool = False  # `pg_status` says where it stands, whatever the buffer has dropped
    completed_strict: int = 0  # newest one that proves that all the others had entered it
    entered_strict: int = 0  # newest one of that kind
    has_entries: bool = False  # of collectives
    pending: list[Collective] = msgspec.field(default_factory=list)
    pending_p2p: list[Collective] = msgspec.field(default_factory=list)

    def enter(self, op: str, seq: int, *, is_finished: bool) -> None:
        """Takes account of a collective, and of the older ones of that kind."""
        self.has_entries = True
        self.entered = max(self.entered, seq)
        self.finished = max(self.finished, seq) if is_finished else self.finished
        if op in STRICT:
            self.entered_strict = max(self.entered_strict, seq)
            self.completed_strict = max(self.completed_strict, seq) if is_finished else self.completed_strict


class Positions:
    """Index over the records of one generation."""

    def __init__(
        self, records: Iterable[FlightRecord], world: Iterable[int] = (), usual_s: float | None = None
    ) -> None:
        self.usual_s = usual_s
        self.records = {record.rank: record for record in records}
        worlds = {id(record.world): record.world for record in self.records.values()}  # mostly one object
        self.world = tuple(sorted(set(world).union(self.records, *worlds.values())))
        self.group_of = process_groups.learn(self.records.values(), self.world)
        distinct = {id(group): group for group in self.group_of.values()}
        self.groups = {(group.name, group.ranks): group for group in distinct.values()}
        self._at: dict[tuple[str, int], Position] = defaultdict(Position)
        self._mixed = {name for record in self.records.values() for name in record.p2p_groups}
        self._made: dict[tuple[int, int], Collective] = {}
        self._waits: dict[int, list[Collective]] = {}
        for record in self.records.values():
            self._waits[record.rank] = self._add(record.rank, record.entries)
            for status in record.status:
                self._state(record.rank, status)
        self.stale = self._find_stale()

    def _add(self, rank: int, entries: Entries) -> list[Collective]:
        """Only what the rank waits in becomes an entry of its own; returned in the order in which it entered it."""
        completed = [0] * len(entries.kinds)
        waiting: list[int] = []
        for number, (place, seq, state) in enumerate(entries.rows()):
            if not state & Entries.COMPLETED:
                waiting.append(number)
            elif seq > completed[place]:
                completed[place] = seq
        for kind, seq in zip(entries.kinds, completed, strict=True):
            if not kind.is_p2p:
                self._at[kind.group, rank].enter(kind.op, seq, is_finished=True)
        found = [self._entry(rank, number) for number in waiting]
        for entry in found:
            position = self._at[entry.group, rank]
            if entry.is_p2p:
                position.pending_p2p.append(entry)
            else:
                position.enter(entry.op, entry.seq, is_finished=False)
                position.pending.append(entry)
        return found

    def _entry(self, rank: int, number: int) -> Collective:
        """Return the same object for an entry each time: rules compare waiting ranks by identity."""
        key = rank, number
        if key not in self._made:
            self._made[key] = self.records[rank].entries[number]
        return self._made[key]

    def called(self, name: str, rank: int, seq: int) -> Collective | None:
        """Return the operation that a rank called as number `seq` of a group; None: not known, or none."""
        if self.at(name, rank) is None:
            return None
        number = self.records[rank].entries.find(name, seq)
        return None if number is None else self._entry(rank, number)

    def _state(self, rank: int, status: GroupStatus) -> None:
        """Apply `pg_status`. In a group with sends and receives, its numbers may be of those: then it proves only that
        the group's operations that still wait are all among the entries."""
        position = self._at[status.group, rank]
        position.is_stated = True
        if status.group in self._mixed or status.enqueued is None:
            return
        position.entered = max(position.entered, status.enqueued)
        if status.completed is not None and status.completed <= status.enqueued:
            position.finished = max(position.finished, status.completed)

    def at(self, name: str, rank: int) -> Position | None:
        """None: unknown, because there is no record or its buffer has dropped this group."""
        record = self.records.get(rank)
        if record is None or rank in self.stale:
            return None
        position = self._at.get((name, rank))
        if position is not None and (position.has_entries or position.pending_p2p or position.is_stated):
            return position
        dropped = len(record.entries) > 0 and record.entries.record_ids[0] > 0
        return None if dropped else Position()

    def pending(self, rank: int) -> list[Collective]:
        """The first incomplete operation of each group that the rank uses, in the order in which it entered them."""
        first: dict[tuple[str, bool], Collective] = {}
        for entry in self._waits.get(rank, ()) if rank not in self.stale else ():
            first.setdefault((entry.group, entry.is_p2p), entry)
        return list(first.values())

    def group(self, name: str, rank: int) -> ParallelGroup:
        return self.group_of.get((name, rank)) or ParallelGroup(name=name, ranks=(rank,))

    def missing(self) -> tuple[int, ...]:
        return tuple(rank for rank in self.world if rank not in self.records)

    def _find_stale(self) -> dict[int, str]:
        """Records that were taken earlier than the others', or in another generation: what they lack cannot blame."""
        stale: dict[int, str] = {}
        for group in self.groups.values():
            known = {rank: self._at[group.name, rank] for rank in group.ranks if rank in self.records}
            proven = self._proven(group.name, known)
            for rank, position in known.items():
                if (position.has_entries or position.is_stated) and position.entered < proven:
                    stale[rank] = (
                        f"the record of rank {rank} ends at #{position.entered} in {group.title}, but others completed "
                        f"#{proven} there: it was taken earlier, or in another generation"
                    )
        return stale

    def _proven(self, name: str, known: Mapping[int, Position]) -> int:
        """The newest operation that all members are proven to have entered, because one of them finished it."""
        finished = max((position.finished for position in known.values()), default=0)
        proven = max((position.completed_strict for position in known.values()), default=0)
        for rank, position in known.items():
            if position.entered_strict > proven:
                proven = max(proven, self._newest_strict(name, rank, finished))
        return proven

    def _newest_strict(self, name: str, rank: int, up_to: int) -> int:
        entries = self.records[rank].entries
        wanted = {n for n, kind in enumerate(entries.kinds) if kind.group == name and kind.op in STRICT}
        wanted = {n for n in wanted if not entries.kinds[n].is_p2p}
        return max((seq for kind, seq, _ in entries.rows() if kind in wanted and seq <= up_to), default=0)
