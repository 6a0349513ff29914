"""A flight record of torch (gloo or NCCL, from pickle or JSON, already decoded) as a FlightRecord.

Every field is checked before it is used, because the file may contain anything. `pg_status` numbers its groups by the
order of their creation and not by name (`reading.status`). On gloo `state` stays "scheduled" and `pg_config` names no
group: whether an operation completed is read from `retired`, and the members of a group are learned by `groups.learn`
from the records of all ranks.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeGuard

from everstep.analyzer.observations.groups import kind_of
from everstep.analyzer.observations.records import FlightRecord, GroupStatus, ParallelGroup
from everstep.analyzer.reading.entries import read_entries
from everstep.analyzer.reading.pickled import UnreadableError
from everstep.analyzer.reading.status import read_status

KNOWN_MAJOR = "2"
MAX_ENTRIES = 200_000
MAX_RANKS_IN_GROUP = 1_000_000

_WORLD_NAMES = ("default_pg",)


def is_flight_record(raw: object) -> bool:
    """Whether decoded data looks like one, so that a folder can be sorted by content."""
    return isinstance(raw, dict) and "entries" in raw and ("pg_config" in raw or "pg_status" in raw)


def is_envelope(raw: object) -> TypeGuard[dict[str, object]]:
    """Whether everstep's own collectors wrote it around a record: `evidence.decode` knows what else is in it."""
    return isinstance(raw, dict) and "everstep_evidence" in raw


def normalise(raw: object, rank: int) -> FlightRecord:
    """Raises UnreadableError."""
    if not isinstance(raw, dict):
        raise UnreadableError(f"a flight record is an object, this is {type(raw).__name__}")
    version = raw.get("version")
    if not isinstance(version, str) or not re.fullmatch(r"\d+(\.\d+)*", version):
        raise UnreadableError("flight record without a version")
    if version.split(".")[0] != KNOWN_MAJOR:
        raise UnreadableError(f"flight record of version {version}; this reader knows {KNOWN_MAJOR}.x")
    entries = raw.get("entries", [])
    if not isinstance(entries, list | tuple):
        raise UnreadableError("flight record whose entries are not a list")
    if len(entries) > MAX_ENTRIES:
        raise UnreadableError(f"flight record of {len(entries):,} entries; at most {MAX_ENTRIES:,}")
    read = read_entries(entries)
    groups, world = _groups(raw.get("pg_config"))
    status = read_status(raw.get("pg_status"), raw.get("pg_config"), read.group_of_id)
    named = {group.name for group in groups}
    groups += [ParallelGroup(name=n, desc=d, kind=kind_of(d)) for n, d in sorted(read.groups) if n not in named]
    return FlightRecord(
        rank=rank,
        version=version[:40],
        entries=read.entries,
        groups=tuple(groups),
        world=world,
        status=status,
        p2p_groups=tuple(sorted(read.with_p2p.union(_counted(read.newest, status)))),
        is_queued=read.is_queued,
    )


def _counted(newest: Mapping[str, tuple[int, int]], status: Iterable[GroupStatus]) -> Iterator[str]:
    """Groups whose sends and receives are only counted: gloo's record lists none, and its status counts them. It then
    numbers operations (`op_id`) and not collectives."""
    for each in status:
        seq, number = newest.get(each.group, (0, 0))
        if number != seq != each.enqueued:
            yield each.group


def _groups(config: object) -> tuple[list[ParallelGroup], tuple[int, ...]]:
    """Groups that the record names with their ranks, and the ranks of the job if it says so."""
    groups: list[ParallelGroup] = []
    world: tuple[int, ...] = ()
    for key, value in list(config.items())[:MAX_ENTRIES] if isinstance(config, dict) else ():
        if not isinstance(value, dict):
            continue
        ranks = _ranks(value.get("ranks"))
        desc = value.get("desc") if isinstance(value.get("desc"), str) else ""
        assert isinstance(desc, str)
        if desc in _WORLD_NAMES or not str(key):
            world = ranks or world
        if str(key) and ranks:  # gloo has one nameless entry, which belongs to no group in particular
            kind = "world" if desc in _WORLD_NAMES else kind_of(desc)
            groups.append(ParallelGroup(name=str(key)[:200], desc=desc[:200], ranks=ranks, kind=kind, complete=True))
    return groups, world


def _ranks(value: object) -> tuple[int, ...]:
    """torch writes "[0, 1, 2]" as text."""
    if isinstance(value, str):
        return _ranks_in_text(value[: 12 * MAX_RANKS_IN_GROUP])
    if isinstance(value, list | tuple):
        return tuple(sorted({n for n in value if isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 31}))
    return ()


@functools.lru_cache(maxsize=4096)
def _ranks_in_text(text: str) -> tuple[int, ...]:
    """Cached: each of 10,000 records lists the same 10,000 ranks, which should be one tuple."""
    return tuple(sorted({int(n) for n in re.findall(r"\d{1,9}", text)}))
