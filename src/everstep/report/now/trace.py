"""Trace of one rank over some seconds, for Perfetto and chrome://tracing: tracks on one time axis.

Each track is measured, or has the reason why it is missing. Slices of one lane are nested in each other or apart.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

MAX_EVENTS = 200_000
"""A trace of more is cut, oldest first stays, and says so: browsers show some hundred megabytes badly."""

MAX_LANES = 16
_NAME = 200
_ARG = 400


class Slice(msgspec.Struct, frozen=True):
    """Wall clock, seconds. `lane`: slices of different lanes need not be nested."""

    name: str
    begin: float
    end: float
    args: dict[str, Any] = {}
    lane: str = ""


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """`why`: it is missing, or a part of it is. `moments`: what has no end that is known."""

    name: str
    is_measured: bool = True
    why: str = ""
    slices: Sequence[Slice] = ()
    moments: Sequence[Slice] = ()
    values: Sequence[tuple[float, float]] = ()  # wall clock, value
    unit: str = ""  # of `values`


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    run: str
    rank: int
    pid: int
    generation: int
    begin: float
    end: float
    tracks: Sequence[Track]


MEASURED, UNKNOWN = "measured", "unknown"


class Statement(msgspec.Struct, frozen=True):
    """Whether a track is measured, and how much of it there is."""

    track: str
    state: str = msgspec.field(name="is")  # MEASURED, UNKNOWN
    why: str
    events: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a trace, for a person or a program, beside its file."""

    rank: int
    pid: int
    generation: int
    begin: float
    end: float
    tracks: list[Statement]


def summary_of(trace: Trace) -> Summary:
    tracks = [
        Statement(
            track.name,
            MEASURED if track.is_measured else UNKNOWN,
            track.why,
            len(track.slices) + len(track.moments) + len(track.values),
        )
        for track in trace.tracks
    ]
    return Summary(
        rank=trace.rank, pid=trace.pid, generation=trace.generation, begin=trace.begin, end=trace.end, tracks=tracks
    )


def to_object(trace: Trace, max_events: int | None = None) -> dict[str, Any]:
    """The trace in the Trace Event Format (JSON object), times in microseconds since its begin."""
    most = MAX_EVENTS if max_events is None else max_events
    events: list[dict[str, Any]] = [_meta("process_name", trace.pid, 0, f"rank {trace.rank} (pid {trace.pid})")]
    num_left_out = 0
    tid = 0
    for track in trace.tracks:
        room = most - len(events)
        made, tid = _events(trace, track, tid)
        num_left_out += max(0, len(made) - room)
        events += made[: max(0, room)]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "run": trace.run,
            "rank": trace.rank,
            "generation": trace.generation,
            "begin": trace.begin,
            "end": trace.end,
            "left_out": num_left_out,
            "tracks": msgspec.to_builtins(summary_of(trace).tracks),
        },
    }


def _events(trace: Trace, track: Track, tid: int) -> tuple[list[dict[str, Any]], int]:
    """Those of one track, and the newest thread number used."""
    inside = [each for each in track.slices if each.end > trace.begin and each.begin < trace.end]
    lanes = sorted({each.lane for each in (*inside, *track.moments)}) or [""]
    numbers = {lane: tid + 1 + place for place, lane in enumerate(lanes[:MAX_LANES])}
    title = track.name if track.is_measured else f"{track.name}: unknown: {track.why}"
    made = [_meta("thread_name", trace.pid, n, f"{title} {lane}".strip()[:_NAME]) for lane, n in numbers.items()]
    made += [
        {"name": "thread_sort_index", "ph": "M", "pid": trace.pid, "tid": n, "args": {"sort_index": n}}
        for n in numbers.values()
    ]
    if not track.is_measured:
        made.append(_moment(trace, tid + 1, Slice(f"unknown: {track.why}"[:_NAME], trace.begin, trace.begin)))
    made += [_slice(trace, numbers[each.lane], each) for each in _ordered(inside) if each.lane in numbers]
    made += [_moment(trace, numbers[each.lane], each) for each in track.moments if each.lane in numbers]
    made += [
        {"name": track.name, "ph": "C", "pid": trace.pid, "ts": _us(trace, at), "args": {track.unit: value}}
        for at, value in track.values
    ]
    return made, tid + len(numbers)


def _ordered(slices: Iterable[Slice]) -> list[Slice]:
    """Outer ones before those within them."""
    return sorted(slices, key=lambda each: (each.lane, each.begin, -each.end))


def _slice(trace: Trace, tid: int, each: Slice) -> dict[str, Any]:
    begin, end = _us(trace, each.begin), _us(trace, each.end)
    found = {"name": each.name[:_NAME], "ph": "X", "pid": trace.pid, "tid": tid, "ts": begin, "dur": end - begin}
    return found | {"args": _args(each)}


def _moment(trace: Trace, tid: int, each: Slice) -> dict[str, Any]:
    found = {"name": each.name[:_NAME], "ph": "i", "s": "t", "pid": trace.pid, "tid": tid}
    return found | {"ts": _us(trace, each.begin), "args": _args(each)}


def _args(each: Slice) -> dict[str, Any]:
    """Ranks wrote some of it."""
    return {name: value[:_ARG] if isinstance(value, str) else value for name, value in each.args.items()}


def _meta(name: str, pid: int, tid: int, text: str) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": {"name": text}}


def _us(trace: Trace, at: float) -> int:
    """Cut to the trace. Rounded the same way everywhere, so that what was nested stays so."""
    return int((min(max(at, trace.begin), trace.end) - trace.begin) * 1e6)


def step_slices(seen: Sequence[tuple[int, float]]) -> list[Slice]:
    """From (last completed step, when): each slice is the time since the one before. Steps that were completed between
    two looks share a slice."""
    found = []
    for (before, begin), (step, end) in itertools.pairwise(seen):
        if step > before and end >= begin:
            name = f"step {step}" if step == before + 1 else f"steps {before + 1} to {step}"
            found.append(Slice(name, begin, end, {"steps": step - before}))
    return found


def render(trace: Summary, path: str, num_bytes: int) -> list[str]:
    """Return the lines that a person is shown, the file last."""
    lines = [f"rank {trace.rank}, pid {trace.pid}, generation {trace.generation}: {trace.end - trace.begin:.1f} s"]
    for each in trace.tracks:
        amount = f"{each.events:,} events" if each.state == MEASURED else UNKNOWN
        lines.append(f"  {each.track:<16} {amount}{': ' if each.why else ''}{each.why}")
    return [*lines, f"{path} ({num_bytes / 1024:,.0f} KiB): open it in https://ui.perfetto.dev"]
