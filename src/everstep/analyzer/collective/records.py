"""The table from flight records in files: they know when ranks entered operations, not how long calls took. Pure."""

from collections.abc import Sequence

from everstep.analyzer.collective.figures import Table
from everstep.analyzer.collective.folding import Folding
from everstep.analyzer.collective.volume import num_bytes
from everstep.analyzer.observations.records import Collective, FlightRecord
from everstep.model.collective import Kind, Op, RankOps


def fold_records(records: Sequence[FlightRecord], at: float) -> Table:
    """One look at all of them."""
    world = max((len(record.world) for record in records), default=0)
    folding = Folding()
    folding.add([_stream(record) for record in records], at=at, world_size=max(world, len(records)))
    return folding.table()


def _stream(record: FlightRecord) -> RankOps:
    kinds: dict[Kind, int] = {}
    ops: list[Op] = []
    for entry in record.entries:
        if entry.created_at is not None and not entry.is_p2p:
            kind = kinds.setdefault((entry.group, entry.op, _size(entry)), len(kinds))
            ops.append((kind, entry.seq, entry.created_at, -1.0))
    whole = {group.name for group in record.groups if group.ranks == record.world}
    return RankOps(
        rank=record.rank,
        kinds=tuple(kinds),
        ops=tuple(ops),
        num_entered=len(ops),
        groups={group.name: group.ranks for group in record.groups if group.complete and group.name not in whole},
        titles={group.name: group.desc for group in record.groups},
        is_queued=record.is_queued,
        missing="" if ops else "its flight record is empty",
    )


def _size(entry: Collective) -> int:
    return num_bytes(entry.op, entry.input_sizes, entry.input_dtypes, entry.output_sizes, entry.output_dtypes)
