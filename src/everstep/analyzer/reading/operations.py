"""Timed operations of ranks become seconds of computing per rank and step. Pure.

The reader (`evidence.tables`) has checked the fields. Waiting for other ranks, loading data and garbage collection are
no computing; of operations that contain each other only the time that they cover counts, once.
"""

import re
from collections import defaultdict
from collections.abc import Iterable

import msgspec

from everstep.analyzer.slowness.shares import Table

_WAITS = re.compile(
    r"send|recv|reduce|gather|scatter|broadcast|barrier|all.?to.?all|nccl|gloo|c10d|p2p|\bsync|comm|wait"
    r"|data.?load|enumerate\(|\bgc\b",
    re.I,
)

Interval = tuple[float, float]


class Operation(msgspec.Struct, frozen=True, gc=False):
    """Seconds; `lane`: operations of one lane contain each other or follow each other."""

    rank: int
    step: int
    name: str
    start: float
    duration: float
    lane: int = 0


def is_computing(name: str) -> bool:
    """By its name, as profilers and traces call it."""
    return _WAITS.search(name) is None


def to_table(operations: Iterable[Operation], places: dict[int, tuple[int, int]], notes: tuple[str, ...] = ()) -> Table:
    """Per rank and step: what computing covers, less what the same lane waits within it."""
    works: defaultdict[tuple[int, int, int], list[Interval]] = defaultdict(list)
    waits: defaultdict[tuple[int, int, int], list[Interval]] = defaultdict(list)
    for each in operations:
        lanes = works if is_computing(each.name) else waits
        lanes[each.rank, each.step, each.lane].append((each.start, each.start + each.duration))
    by_rank: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
    merged: defaultdict[tuple[int, int], list[Interval]] = defaultdict(list)
    for (rank, step, lane), intervals in works.items():
        merged[rank, step] += _without(_union(intervals), _union(waits[rank, step, lane]))
    for (rank, step), intervals in merged.items():
        by_rank[rank].append((step, sum(end - start for start, end in _union(intervals))))
    return Table(compute_s={rank: dict(steps) for rank, steps in by_rank.items()}, places=places, notes=notes)


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _without(intervals: list[Interval], holes: list[Interval]) -> list[Interval]:
    """Both sorted and without overlaps of their own."""
    found: list[Interval] = []
    first = 0
    for start, end in intervals:
        while first < len(holes) and holes[first][1] <= start:
            first += 1
        at, number = start, first
        while number < len(holes) and holes[number][0] < end:
            if holes[number][0] > at:
                found.append((at, holes[number][0]))
            at = max(at, holes[number][1])
            number += 1
        if at < end:
            found.append((at, end))
    return found
