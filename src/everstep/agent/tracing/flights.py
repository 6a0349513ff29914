"""The collectives of a trace, from torch's flight record of the rank and the stopwatch around its calls."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from everstep.agent.watching.rank_ops import Entry
from everstep.analyzer.collective.calls import durations
from everstep.analyzer.collective.volume import num_bytes
from everstep.linux.regular import read_regular
from everstep.report.now.trace import Slice, Track

MAX_RECORD = 64 << 20
NAME = "collectives"


class _Record(msgspec.Struct, frozen=True):
    """The needed fields of a flight record, with the calls that the rank's watch thread puts beside it."""

    entries: list[Entry] = []
    everstep_calls: list[tuple[int, int, int]] = []


def flight_track(path: Path, begin: float, end: float, max_bytes: int = MAX_RECORD) -> Track:
    """From the file that the rank wrote, which may hold anything."""
    try:
        found = msgspec.json.decode(read_regular(path, max_bytes, follow=False), type=_Record)
    except FileNotFoundError:
        return Track(name=NAME, is_measured=False, why="the rank gave no flight record")
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return Track(name=NAME, is_measured=False, why=str(error)[:200])
    return collectives_track(found.entries, found.everstep_calls, begin, end)


def collectives_track(
    entries: Sequence[Entry], calls: Iterable[tuple[int, int, int]], begin: float, end: float
) -> Track:
    """Slices for those of which the call's time is known, moments for the others."""
    entered = [(int(e.thread_id) if e.thread_id.isdecimal() else -1, e.time_created_ns) for e in entries]
    found = durations(entered, calls)
    slices, moments = [], []
    for entry, took_s in zip(entries, found, strict=True):
        at = entry.time_created_ns / 1e9
        if not begin <= at <= end:
            continue
        size = num_bytes(entry.op, entry.input_sizes, entry.input_dtypes, entry.output_sizes, entry.output_dtypes)
        args = {"group": entry.process_group[1] or entry.process_group[0], "seq": entry.collective_seq_id}
        args |= {"bytes": size if size >= 0 else "unknown"}
        if took_s >= 0 and not entry.is_queued:
            slices.append(Slice(entry.op, at, at + took_s, args, entry.thread_id))
        else:
            moments.append(Slice(f"{entry.op} (end unknown)", at, at, args, entry.thread_id))
    why = "the record begins later: it holds the newest operations only" if _begins_late(entries, begin) else ""
    if moments:
        why = "; ".join(filter(None, (why, f"of {len(moments)} it is not known when they ended")))
    if not entries:
        return Track(name=NAME, is_measured=False, why="the flight record is empty")
    return Track(name=NAME, slices=_apart(slices), moments=moments, why=why)


def _begins_late(entries: Sequence[Entry], begin: float) -> bool:
    oldest = min(entries, key=lambda entry: entry.record_id, default=None)
    return oldest is not None and oldest.record_id > 0 and oldest.time_created_ns / 1e9 > begin


def _apart(slices: Iterable[Slice]) -> list[Slice]:
    """Cut the slices of each thread so that none overlaps one that it does not contain; two clocks were read."""
    by_lane: defaultdict[str, list[Slice]] = defaultdict(list)
    for each in sorted(slices, key=lambda each: (each.begin, -each.end)):
        lane = by_lane[each.lane]
        if lane and lane[-1].begin < each.begin < lane[-1].end < each.end:
            lane[-1] = msgspec.structs.replace(lane[-1], end=each.begin)
        lane.append(each)
    return [each for lane in by_lane.values() for each in lane]
