"""Where every rank stands in every process group, from the flight records of all ranks. Pure; used by `localise`.

A rank's ring buffer may have dropped what is old: a group of which it shows nothing is then unknown, not "never used".
"""

from collections import defaultdict
from collections.abc import Collection, Iterable

import msgspec

from everstep.analyzer.observations import groups as process_groups
from everstep.analyzer.observations.records import Collective, FlightRecord, GroupStatus, ParallelGroup

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
    by_seq: dict[int, Collective] = msgspec.field(default_factory=dict)
    pending: list[Collective] = msgspec.field(default_factory=list)
    pending_p2p: list[Collective] = msgspec.field(default_factory=list)


class Positions:
    """Index over the records of one generation."""

    def __init__(self, records: Iterable[FlightRecord], world: Iterable[int] = ()) -> None:
        self.records = {record.rank: record for record in records}
        worlds = {id(record.world): record.world for record in self.records.values()}  # mostly one object
        self.world = tuple(sorted(set(world).union(self.records, *worlds.values())))
        self.group_of = process_groups.learn(self.records.values(), self.world)
        distinct = {id(group): group for group in self.group_of.values()}
        self.groups = {(group.name, group.ranks): group for group in distinct.values()}
        self._at: dict[tuple[str, int], Position] = defaultdict(Position)
        self._mixed = {name for record in self.records.values() for name in record.p2p_groups}
        for record in self.records.values():
            for entry in record.entries:
                self._add(record.rank, entry)
            for status in record.status:
                self._state(record.rank, status)
        self.stale = self._find_stale()

    def _add(self, rank: int, entry: Collective) -> None:
        position = self._at[entry.group, rank]
        if entry.is_p2p:
            if not entry.completed:
                position.pending_p2p.append(entry)
            return
        position.by_seq[entry.seq] = entry
        position.entered = max(position.entered, entry.seq)
        if not entry.completed:
            position.pending.append(entry)
            return
        position.finished = max(position.finished, entry.seq)
        if entry.op in STRICT:
            position.completed_strict = max(position.completed_strict, entry.seq)

    def _state(self, rank: int, status: GroupStatus) -> None:
        """What `pg_status` says. In a group with sends and receives its numbers may be of those: then it says only that
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
        if position is not None and (position.by_seq or position.pending_p2p or position.is_stated):
            return position
        dropped = bool(record.entries) and record.entries[0].record_id > 0
        return None if dropped else Position()

    def pending(self, rank: int) -> list[Collective]:
        """The first incomplete operation of each group that the rank uses, in the order in which it entered them."""
        record = self.records.get(rank)
        if record is None or rank in self.stale:
            return []
        first: dict[tuple[str, bool], Collective] = {}
        for entry in record.entries:
            if not entry.completed:
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
            proven = self._proven(known.values())
            for rank, position in known.items():
                if (position.by_seq or position.is_stated) and position.entered < proven:
                    stale[rank] = (
                        f"the record of rank {rank} ends at #{position.entered} in {group.title}, but others completed "
                        f"#{proven} there: it was taken earlier, or in another generation"
                    )
        return stale

    @staticmethod
    def _proven(known: Collection[Position]) -> int:
        """The newest operation of which somebody's end proves that all had entered it."""
        finished = max((position.finished for position in known), default=0)
        strict = (seq for each in known for seq, entry in each.by_seq.items() if seq <= finished and entry.op in STRICT)
        return max((*(each.completed_strict for each in known), *strict), default=0)
