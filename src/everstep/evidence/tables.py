"""A trace of timed operations as a Table: CSV, JSON lines, Parquet, or a Chrome trace as torch's profiler writes it.

A trace is untrusted input: each field is checked, a row that lacks one is counted and left out, and sizes are bounded.
Raises UnreadableError if the whole file is unusable. Called by `everstep analyze FILE`.
"""

import csv
import gzip
import json
import math
import re
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from everstep.analyzer.reading.operations import Operation, to_table
from everstep.analyzer.reading.pickled import UnreadableError
from everstep.analyzer.slowness.shares import Table
from everstep.evidence import parquet
from everstep.evidence.names import rank_in

MAX_BYTES = 512 << 20
MAX_ROWS = 20_000_000
MAX_FIELD = parquet.MAX_TEXT

_NAMES = {
    "rank": ("rank", "global_rank"),
    "step": ("step", "iteration", "iter"),
    "name": ("operation", "optype", "op", "name"),
    "start": ("start", "start_ts", "start_s", "ts", "timestamp"),
    "duration": ("duration", "duration_s", "dur"),
    "stage": ("stage", "pp_rank", "pp"),
    "replica": ("replica", "dp_rank", "pipeline", "dp"),
    "tensor": ("tp_rank", "tp"),
}
_NEEDED = ("rank", "step", "name", "start", "duration")
_STEP = re.compile(r"ProfilerStep#(\d{1,12})(?!\d)")
_TRACES = (".trace.json", ".trace.json.gz")


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float | str | None = None
    dur: float | None = None
    args: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class _Info(msgspec.Struct):
    rank: int | None = None


class _Trace(msgspec.Struct):
    traceEvents: list[_Event] = []  # noqa: N815 - the format's own name
    distributedInfo: _Info | None = None  # noqa: N815


def traces_in(folder: Path) -> list[Path]:
    """Profiler traces of several ranks, by their names; none where anything else lies beside them."""
    listed = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    are_all = all(path.name.endswith(_TRACES) and path.is_file() and not path.is_symlink() for path in listed)
    return listed if are_all else []


def is_table(path: Path) -> bool:
    """Whether a file looks like one of the forms read here."""
    head = _read(path, 4096)[:4096]
    if head.startswith(parquet.MAGIC):
        return True
    text = head.decode("utf-8", "replace").lstrip("\ufeff \n\t")
    if text[:1] in ("{", "["):
        return '"traceEvents"' in text or '"ph"' in text or _is_row(text.partition("\n")[0])
    try:
        return _columns(next(csv.reader([text.partition("\n")[0]]), [])) is not None
    except csv.Error:
        return False


def read_tables(paths: Iterable[Path], num_stages: int = 0) -> Table:
    """All ranks together. `num_stages`: pipeline stages, where the trace does not say which rank is in which."""
    operations: list[Operation] = []
    places: dict[int, tuple[int, int]] = {}
    notes: list[str] = []
    for path in paths:
        found, more = _read_one(path, places)
        operations += found
        notes += [f"{path.name}: {note}" for note in more]
    ranks = sorted({operation.rank for operation in operations})
    if not ranks:
        raise UnreadableError("no operation with rank, step, start and duration in it")
    if num_stages > 1 and not places and len(ranks) % num_stages == 0:
        each = len(ranks) // num_stages
        places = {rank: (place // each, place % each) for place, rank in enumerate(ranks)}
    return to_table(operations, places, tuple(notes))


def _read_one(path: Path, places: dict[int, tuple[int, int]]) -> tuple[list[Operation], list[str]]:
    data = _read(path, MAX_BYTES)
    if data.startswith(parquet.MAGIC):
        return _rows(parquet.rows(path, _wanted), places)
    text = data[:4096].decode("utf-8", "replace").lstrip("\ufeff \n\t")
    if text[:1] == "[" or '"traceEvents"' in text or '"schemaVersion"' in text or '"ph"' in text:
        return _chrome(data, rank_in(path.name))
    return _rows(_json_rows(data) if text[:1] == "{" else _csv_rows(data), places)


def _read(path: Path, limit: int) -> bytes:
    opener = gzip.open if path.name.endswith(".gz") else open
    try:
        with opener(path, "rb") as file:
            data: bytes = file.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableError(f"{path.name}: cannot be read: {error}") from error
    if limit == MAX_BYTES and len(data) > limit:
        raise UnreadableError(f"{path.name}: more than {MAX_BYTES >> 20} MiB")
    return data


def _columns(header: Iterable[str]) -> dict[str, str] | None:
    """Map each column that is asked for to the table's own name for it. None: a needed column is missing."""
    there = {name.strip().lower(): name for name in header}
    found = {what: there[n] for what, names in _NAMES.items() for n in reversed(names) if n in there}
    return found if all(what in found for what in _NEEDED) else None


def _wanted(names: Iterable[str]) -> list[str]:
    """The columns that are read; UnreadableError where one is missing that is needed."""
    found = _columns(names)
    if found is None:
        raise UnreadableError(f"needs columns {', '.join(_NEEDED)}")
    return list(found.values())


def _is_row(line: str) -> bool:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and _columns(map(str, row)) is not None


def _csv_rows(data: bytes) -> Iterator[Mapping[str, object]]:
    try:
        yield from csv.DictReader(data.decode("utf-8-sig", "replace").splitlines())
    except csv.Error as error:
        raise UnreadableError(f"not a table: {error}") from error


def _json_rows(data: bytes) -> Iterator[Mapping[str, object]]:
    for line in data.splitlines():
        try:
            row = msgspec.json.decode(line) if line.strip() else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            row = None
        if row is None or isinstance(row, dict):
            yield row or {}


def _rows(
    rows: Iterable[Mapping[str, object]], places: dict[int, tuple[int, int]]
) -> tuple[list[Operation], list[str]]:
    found: list[Operation] = []
    num_bad = 0
    columns: dict[str, str] | None = None
    replicas: dict[object, int] = {}
    for number, row in enumerate(rows):
        if number >= MAX_ROWS:
            raise UnreadableError(f"more than {MAX_ROWS:,} rows")
        columns = columns or _columns(map(str, row))
        operation = _operation(row, columns) if columns else None
        if operation is None or columns is None:
            num_bad += 1
            continue
        found.append(operation)
        stage = _whole(row.get(columns.get("stage", "")))
        replica = row.get(columns.get("replica", "")), row.get(columns.get("tensor", ""))
        if stage is not None and replica[0] is not None:
            places.setdefault(operation.rank, (stage, replicas.setdefault(replica, len(replicas))))
    return found, [f"{num_bad} rows lack a rank, step, operation, start or duration"] if num_bad else []


def _operation(row: Mapping[str, object], columns: dict[str, str]) -> Operation | None:
    rank, step = _whole(row.get(columns["rank"])), _whole(row.get(columns["step"]))
    start, duration = _seconds(row.get(columns["start"])), _seconds(row.get(columns["duration"]))
    if rank is None or step is None or start is None or duration is None or duration < 0 or rank < 0:
        return None
    return Operation(rank, step, str(row.get(columns["name"]))[:MAX_FIELD], start, duration)


def _whole(value: object) -> int | None:
    number = _seconds(value)
    return int(number) if number is not None and number == int(number) and abs(number) < 1 << 40 else None


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _chrome(data: bytes, rank_of_file: int | None) -> tuple[list[Operation], list[str]]:
    """Microseconds. A step is said by the event, or by the profiler's annotation around it."""
    try:
        if data.lstrip()[:1] == b"[":
            trace = _Trace(traceEvents=msgspec.json.decode(data, type=list[_Event], strict=False))
        else:
            trace = msgspec.json.decode(data, type=_Trace, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableError(f"not a Chrome trace: {error}") from error
    rank = _whole(trace.distributedInfo.rank) if trace.distributedInfo is not None else None
    rank = rank if rank is not None else rank_of_file
    events = [e for e in trace.traceEvents if e.ph == "X" and e.dur is not None and _seconds(e.ts) is not None]
    steps = sorted((_at(e), _at(e) + (e.dur or 0), int(m[1])) for e in events if (m := _STEP.search(e.name)))
    kernels = [e for e in events if e.cat in ("kernel", "gpu_memcpy", "gpu_memset")]
    known = kernels or [e for e in events if e.cat == "cpu_op"]
    used = known or [e for e in events if not _STEP.search(e.name)]
    return _operations(used, steps, rank, is_torch=bool(known))


def _operations(
    events: list[_Event], steps: list[tuple[float, float, int]], rank: int | None, *, is_torch: bool
) -> tuple[list[Operation], list[str]]:
    found: list[Operation] = []
    num_bad = 0
    lanes: dict[object, int] = {}
    starts = [start for start, _, _ in steps]
    for event in events:
        args = event.args if isinstance(event.args, dict) else {}
        mine = rank if is_torch or rank is not None else _whole(args.get("rank", event.pid))
        step = _whole(args.get("step"))
        if step is None and starts:
            place = bisect_right(starts, _at(event)) - 1
            step = steps[place][2] if place >= 0 and _at(event) < steps[place][1] else None
        if mine is None or step is None or mine < 0:
            num_bad += 1
            continue
        lane = lanes.setdefault(event.tid if isinstance(event.tid, int | str) else None, len(lanes))
        found.append(
            Operation(mine, step, event.name[:MAX_FIELD], _at(event) / 1e6, max(0.0, event.dur or 0) / 1e6, lane)
        )
    return found, [f"{num_bad} events are of no known rank and step"] if num_bad else []


def _at(event: _Event) -> float:
    return _seconds(event.ts) or 0.0
