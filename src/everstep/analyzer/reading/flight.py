"""A flight record of torch (gloo or NCCL, from pickle or JSON, already decoded) as a FlightRecord.

Every field is checked before it is used, because the file may say anything. `pg_status` numbers its groups by the
order of their creation and not by name (`reading.status`). On gloo `state` stays "scheduled" and
`pg_config` names no group: whether an operation completed is read from `retired`, and who is in a group is learned
by `groups.learn` from the records of all ranks.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any

from everstep.analyzer.observations.frames import is_user_file
from everstep.analyzer.observations.groups import kind_of
from everstep.analyzer.observations.records import Collective, FlightRecord, GroupStatus, ParallelGroup, Sizes
from everstep.analyzer.reading.fields import INT64, integer
from everstep.analyzer.reading.pickled import UnreadableError
from everstep.analyzer.reading.status import read_status

KNOWN_MAJOR = "2"
MAX_ENTRIES = 200_000
MAX_RANKS_IN_GROUP = 1_000_000

_P2P = re.compile(r"(send|recv) (\d+)(->|<-)(\d+)$")
_WORLD_NAMES = ("default_pg",)


def is_flight_record(raw: object) -> bool:
    """Whether decoded data looks like one, so that a folder can be sorted by content."""
    return isinstance(raw, dict) and "entries" in raw and ("pg_config" in raw or "pg_status" in raw)


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
    seen = [_entry(entry, number) for number, entry in enumerate(entries)]
    groups, world = _groups(raw.get("pg_config"))
    status = read_status(raw.get("pg_status"), raw.get("pg_config"), entries)
    named = {group.name for group in groups}
    descs = {_group_of(entry) for entry in entries}
    groups += [ParallelGroup(name=n, desc=d, kind=kind_of(d)) for n, d in sorted(descs) if n not in named]
    return FlightRecord(
        rank=rank,
        version=version[:40],
        entries=tuple(sorted(seen, key=lambda entry: entry.record_id)),
        groups=tuple(groups),
        world=world,
        status=status,
        p2p_groups=tuple(sorted(_with_p2p(entries, status))),
        is_queued=any(_is_queued(entry) for entry in entries),
    )


def _has_p2p(entry: object) -> bool:
    """Whether its group has sends or receives: those have a number of their own, which stays 0 elsewhere."""
    return isinstance(entry, dict) and (bool(entry.get("is_p2p")) or (integer(entry.get("p2p_seq_id")) or 0) > 0)


def _with_p2p(entries: Sequence[object], status: Iterable[GroupStatus]) -> set[str]:
    """Groups with sends and receives, listed or only counted: gloo's record lists none, and its status counts them. It
    then numbers operations (`op_id`) and not collectives."""
    listed = {_group_of(entry)[0] for entry in entries if _has_p2p(entry)}
    newest: dict[str, tuple[int, int]] = {}
    for entry in entries:
        seq = integer(entry.get("collective_seq_id")) if isinstance(entry, dict) else None
        number = integer(entry.get("op_id")) if isinstance(entry, dict) else None
        if seq is not None and number is not None:
            name = _group_of(entry)[0]
            newest[name] = max(newest.get(name, (0, 0)), (seq, number))
    for each in status:
        seq, number = newest.get(each.group, (0, 0))
        if number != seq != each.enqueued:
            listed.add(each.group)
    return listed


def _is_queued(entry: object) -> bool:
    name = entry.get("profiling_name") if isinstance(entry, dict) else None
    return isinstance(name, str) and name.startswith("nccl:")


def _entry(raw: object, number: int) -> Collective:
    if not isinstance(raw, dict):
        raise UnreadableError(f"entry {number} of the flight record is {type(raw).__name__}, not an object")
    name = raw.get("profiling_name")
    op = name.partition(":")[2] or name if isinstance(name, str) else ""
    p2p = _P2P.search(op)
    is_p2p = bool(raw.get("is_p2p")) or p2p is not None
    state = raw.get("state")
    finished = integer(raw.get("time_discovered_completed_ns"))
    begun = integer(raw.get("time_discovered_started_ns"))
    created = integer(raw.get("time_created_ns"))
    completed = raw.get("retired") is True or state == "completed" or bool(finished)
    return Collective(
        group=_group_of(raw)[0],
        seq=_needed(raw, "p2p_seq_id" if is_p2p else "collective_seq_id", number),
        op=p2p[1] if p2p else op[:100],
        record_id=_needed(raw, "record_id", number),
        completed=completed,
        is_p2p=is_p2p,
        peer=_peer(p2p) if p2p else None,
        input_sizes=_sizes(raw.get("input_sizes")),
        output_sizes=_sizes(raw.get("output_sizes")),
        input_dtypes=_words(raw.get("input_dtypes")),
        output_dtypes=_words(raw.get("output_dtypes")),
        created_at=created / 1e9 if created else None,
        place=_place(raw.get("frames")),
        timeout_s=timeout / 1e3 if (timeout := integer(raw.get("timeout_ms"))) and timeout > 0 else None,
        started=True if completed or bool(begun) or state == "started" else None,
        seen_at=max((moment for moment in (created, begun, finished) if moment), default=0) / 1e9 or None,
    )


def _peer(match: re.Match[str]) -> tuple[int, int]:
    first, second = int(match[2]), int(match[4])
    return (first, second) if match[3] == "->" else (second, first)


def _group_of(raw: object) -> tuple[str, str]:
    group = raw.get("process_group") if isinstance(raw, dict) else None
    if isinstance(group, list | tuple) and group and isinstance(group[0], str | int):
        return str(group[0])[:200], str(group[1])[:200] if len(group) > 1 and isinstance(group[1], str) else ""
    return "", ""


def _needed(raw: dict[Any, Any], key: str, number: int) -> int:
    value = integer(raw.get(key))
    if value is None:
        raise UnreadableError(f"entry {number} of the flight record has no {key}")
    return value


def _sizes(value: object) -> Sizes:
    if not isinstance(value, list | tuple):
        return ()
    return tuple(
        tuple(n for n in shape[:16] if isinstance(n, int) and -INT64 <= n < INT64)
        for shape in value[:4096]
        if isinstance(shape, list | tuple)
    )


def _words(value: object) -> tuple[str, ...]:
    return tuple(v for v in value[:4096] if isinstance(v, str)) if isinstance(value, list | tuple) else ()


def _place(frames: object) -> str:
    """Innermost frame in a file of the user's: "train.py:212 step"."""
    for frame in frames[:256] if isinstance(frames, list | tuple) else ():
        if not isinstance(frame, dict):
            continue
        name, file, line = frame.get("name"), frame.get("filename"), integer(frame.get("line"))
        if isinstance(name, str) and isinstance(file, str) and is_user_file(file):
            return f"{file.rpartition('/')[2]}:{line} {name}"
    return ""


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
