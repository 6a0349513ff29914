"""The operations of a flight record, from decoded data into checked columns. Pure; used by `reading.flight`.

Thousands of operations of a record differ in their numbers only. So what they have in common is checked once per kind,
and recognised again by comparing it with the newest ones of that name; numbers are checked a column at a time.
"""

import contextlib
import operator
import re
from array import array
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from everstep.analyzer.observations.frames import is_user_file
from everstep.analyzer.observations.records import Entries, OpKind, Sizes
from everstep.analyzer.reading.fields import INT64, integer
from everstep.analyzer.reading.pickled import UnreadableError

_P2P = re.compile(r"(send|recv) (\d+)(->|<-)(\d+)$")
_COMMON = (
    "profiling_name", "pg_id", "process_group", "is_p2p", "timeout_ms", "input_sizes", "output_sizes", "input_dtypes",
    "output_dtypes", "frames",
)  # fmt: skip
_NUMBERS = (
    "record_id", "collective_seq_id", "p2p_seq_id", "op_id", "time_created_ns", "time_discovered_started_ns",
    "time_discovered_completed_ns", "state", "retired",
)  # fmt: skip
_NUMBER_TYPES = frozenset({int, type(None)})

_MOST_COMPARED = 6
"""Kinds of one name and group: forward and backward, and a few sizes."""

_Column = Sequence[int | None]


class Read(msgspec.Struct, frozen=True):
    """Content of a record's entries."""

    entries: Entries
    groups: frozenset[tuple[str, str]]  # name and description
    group_of_id: dict[str, str]  # torch's number of a group on this rank -> its name
    with_p2p: frozenset[str]  # groups with sends and receives
    newest: dict[str, tuple[int, int]]  # of each group: its newest collective, and the number of operations then
    is_queued: bool


def read_entries(raw: Sequence[object]) -> Read:
    """Raises UnreadableError."""
    for number, entry in enumerate(raw):
        if not isinstance(entry, dict):
            raise UnreadableError(f"entry {number} of the flight record is {type(entry).__name__}, not an object")
    common = _Common()
    kind = list(map(common.place_of, _fields(raw, _COMMON)))
    columns: list[Sequence[object]] = list(zip(*_fields(raw, _NUMBERS), strict=True)) or [()] * len(_NUMBERS)
    ids = _needed(_integers(columns[0]), "record_id")
    if ids != sorted(ids):
        order = sorted(range(len(ids)), key=ids.__getitem__)
        columns = [[column[place] for place in order] for column in columns]
        ids, kind = sorted(ids), [kind[place] for place in order]
    seq, p2p, op_id, created, begun, finished = map(_integers, columns[1:7])
    kinds = tuple(each.kind for each in common.listed)
    numbers = _numbers(kinds, kind, seq, p2p)
    created, begun, finished = _known(created), _known(begun), _known(finished)
    made = Entries(
        kinds=kinds,
        kind=array("I", kind).tobytes(),
        seq=array("q", numbers).tobytes(),
        record_id=array("q", ids).tobytes(),
        created_ns=array("q", created).tobytes(),
        seen_ns=array("q", map(max, created, begun, finished)).tobytes(),
        state=bytes(map(_state, columns[7], columns[8], begun, finished)),
    )
    said_p2p = {each.kind.group for each in common.listed if each.says_p2p}
    return Read(
        entries=made,
        groups=frozenset(each.group for each in common.listed),
        group_of_id=common.group_of_id,
        with_p2p=frozenset(said_p2p.union(kinds[k].group for k, n in zip(kind, p2p, strict=True) if n and n > 0)),
        newest=_newest(kinds, kind, seq, op_id),
        is_queued=any(each.is_queued for each in common.listed),
    )


def _fields(raw: Sequence[object], names: tuple[str, ...]) -> Sequence[tuple[object, ...]]:
    """These fields of each entry; what is not there is None."""
    try:
        return list(map(operator.itemgetter(*names), raw))  # type: ignore[arg-type]  # all are dictionaries
    except KeyError:
        return [tuple(map(entry.get, names)) for entry in raw]  # type: ignore[attr-defined]


class _Kind(msgspec.Struct, frozen=True):
    kind: OpKind
    group: tuple[str, str]
    says_p2p: bool
    is_queued: bool


class _Common:
    """Finds the kind of each entry."""

    def __init__(self) -> None:
        self.listed: list[_Kind] = []
        self.group_of_id: dict[str, str] = {}
        self._places: dict[_Kind, int] = {}
        self._latest: defaultdict[tuple[str, int], list[tuple[tuple[object, ...], int]]] = defaultdict(list)

    def place_of(self, said: tuple[object, ...]) -> int:
        """Place in `listed` of what an entry says in the fields of `_COMMON`."""
        name, pg_id = said[0], said[1]
        if type(name) is not str or type(pg_id) is not int:
            return self._place_of_new(said)
        latest = self._latest[name, pg_id]
        for known, place in latest:
            if known == said:
                return place
        place = self._place_of_new(said)
        latest.insert(0, (said, place))
        del latest[_MOST_COMPARED:]
        return place

    def _place_of_new(self, said: tuple[object, ...]) -> int:
        kind = _kind(said)
        place = self._places.setdefault(kind, len(self.listed))
        if place == len(self.listed):
            self.listed.append(kind)
        number = integer(said[1])
        if number is not None and group_of(said[2]) is not None:
            self.group_of_id.setdefault(str(number), kind.group[0])
        return place


def _kind(said: tuple[object, ...]) -> _Kind:
    name, _, group, is_p2p, timeout, input_sizes, output_sizes, input_dtypes, output_dtypes, frames = said
    op = name.partition(":")[2] or name if isinstance(name, str) else ""
    p2p = _P2P.search(op)
    limit_ms = integer(timeout)
    title = group_of(group) or ("", "")
    return _Kind(
        kind=OpKind(
            group=title[0],
            op=p2p[1] if p2p else op[:100],
            is_p2p=bool(is_p2p) or p2p is not None,
            peer=_peer(p2p) if p2p else None,
            input_sizes=_sizes(input_sizes),
            output_sizes=_sizes(output_sizes),
            input_dtypes=_words(input_dtypes),
            output_dtypes=_words(output_dtypes),
            place=_place(frames),
            timeout_s=limit_ms / 1e3 if limit_ms and limit_ms > 0 else None,
        ),
        group=title,
        says_p2p=bool(is_p2p),
        is_queued=isinstance(name, str) and name.startswith("nccl:"),
    )


def group_of(group: object) -> tuple[str, str] | None:
    """Name and description of a process group, as an entry has them; None: it does not say."""
    if isinstance(group, list | tuple) and group and isinstance(group[0], str | int):
        return str(group[0])[:200], str(group[1])[:200] if len(group) > 1 and isinstance(group[1], str) else ""
    return None


def _integers(column: Sequence[object]) -> _Column:
    """Each a 64-bit integer, or None."""
    types = set(map(type, column))
    if types <= _NUMBER_TYPES:
        with contextlib.suppress(OverflowError):
            array("q", column if types == {int} else filter(None, column))  # type: ignore[type-var]
            return column  # type: ignore[return-value]
    return [integer(value) for value in column]


def _known(column: _Column) -> list[int]:
    return [number or 0 for number in column]


def _needed(column: _Column, key: str) -> list[int]:
    if None in column:
        raise UnreadableError(f"entry {list(column).index(None)} of the flight record has no {key}")
    return list(column)  # type: ignore[arg-type]


def _numbers(kinds: Sequence[OpKind], kind: Sequence[int], seq: _Column, p2p: _Column) -> list[int]:
    """The place in its sequence of each: sends and receives have a sequence of their own."""
    if not any(each.is_p2p for each in kinds):
        return _needed(seq, "collective_seq_id")
    is_p2p = [each.is_p2p for each in kinds]
    chosen = [theirs if is_p2p[k] else mine for k, mine, theirs in zip(kind, seq, p2p, strict=True)]
    return _needed(chosen, "p2p_seq_id or collective_seq_id")


def _state(state: object, retired: object, begun: int, finished: int) -> int:
    if retired is True or state == "completed" or finished:
        return Entries.COMPLETED | Entries.STARTED
    return Entries.STARTED if begun or state == "started" else 0


def _newest(kinds: Sequence[OpKind], kind: Sequence[int], seq: _Column, op_id: _Column) -> dict[str, tuple[int, int]]:
    newest = [(0, 0)] * len(kinds)
    for k, number, op in zip(kind, seq, op_id, strict=True):
        if number is not None and op is not None and (number, op) > newest[k]:
            newest[k] = number, op
    found: dict[str, tuple[int, int]] = {}
    for each, pair in zip(kinds, newest, strict=True):
        found[each.group] = max(found.get(each.group, (0, 0)), pair)
    return found


def _peer(match: re.Match[str]) -> tuple[int, int]:
    first, second = int(match[2]), int(match[4])
    return (first, second) if match[3] == "->" else (second, first)


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
