"""Streams of entered collectives, folded to a table. Pure: the same streams give the same table.

An operation counts when all members of its group were seen in it. The last rank to enter is the one that the others
waited for. Times of one rank are differences of its own clock; arrivals of ranks on several machines are compared after
the differences of their clocks are taken off, and only where they differ by more than those are known.
"""

import math
import statistics
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping

import msgspec

from everstep.analyzer.collective.figures import Figure, Group, Late, Row, Table, Window
from everstep.analyzer.collective.volume import bus_share
from everstep.model.collective import RankOps

MAX_WINDOWS = 60
MAX_ROWS = 512
"""Operations, sizes and groups together; what comes later counts under its group without a row of its own."""

MAX_GROUPS = 1024
"""Kept after a look. Programs that make a group for each epoch have no end of them: the longest idle ones go."""

MAX_LATE = 1024
LATE_S = 0.001
"""A rank that comes less than this after the others is not late: threads wake up, clocks tick."""

DOUBT_S = 0.004
"""Of arrivals on several machines: as much is left of the differences of their clocks."""

MAX_OPEN = 50_000
"""Operations that wait for the rest of their members."""

PATIENCE = 2
"""Looks: ranks are asked at the same moment, so the rest comes with the next look or never."""

ASYNC = "the call returned before the operation was done, or was made in C++ (DistributedDataParallel, compiled code)"
QUEUED = "it is known when the host queued the operation, not when the device entered it"
NO_SIZE = "the record does not say how many bytes"
FIRST = "there is one window only"

Key = tuple[str, tuple[int, ...]]
"""A group: its name, and its ranks where they were declared; names repeat where ranks do not overlap."""


class _Group:
    def __init__(self) -> None:
        self.title = ""
        self.members: set[int] = set()
        self.first: dict[int, int] = {}  # rank -> first and newest sequence number that was seen
        self.newest: dict[int, int] = {}
        self.num_done = 0
        self.seen_in = 0  # number of the newest look with something of it


class _Open(msgspec.Struct):
    """An operation that not all members have told of."""

    op: str
    num_bytes: int
    is_queued: bool
    came_in: int  # number of the look
    arrivals: dict[int, tuple[float, float]] = {}  # rank -> when it entered, how long its call took


class _Sample(msgspec.Struct, frozen=True):
    time_s: float | None
    transfer_s: float | None
    skew_s: float | None


class _Row:
    def __init__(self) -> None:
        self.count = 0
        self.num_late = 0
        self.last: Counter[int] = Counter()
        self.new: list[_Sample] = []
        self.windows: deque[Window] = deque(maxlen=MAX_WINDOWS)
        self.is_queued = False
        self.num_timed = 0
        self.timed_s = 0.0

    def note(self, sample: _Sample) -> None:
        self.new.append(sample)
        if sample.time_s is not None:
            self.num_timed += 1
            self.timed_s += sample.time_s


class Folding:
    """Fold of the ranks' collectives into the table, for one generation at a time."""

    def __init__(self) -> None:
        self.generation = -1
        self._begin(-1)

    def _begin(self, generation: int) -> None:
        self.generation = generation
        self._look = 0
        self._at = 0.0
        self._is_rough = False
        self._groups: dict[Key, _Group] = {}
        self._rows: dict[tuple[Key, str, int], _Row] = {}
        self._open: dict[tuple[Key, int], _Open] = {}
        self._late: deque[tuple[Key, str, int, int, float, float]] = deque(maxlen=MAX_LATE)
        self._missing: dict[int, str] = {}

    def add(
        self,
        streams: Iterable[RankOps],
        *,
        at: float,
        generation: int = 0,
        world_size: int = 0,
        ahead_s: Mapping[int, float] | None = None,
    ) -> None:
        """One look at all ranks. `ahead_s`: by how much a rank's clock is ahead of the others'; empty on one machine.
        `world_size`: 0 where it is not known."""
        if generation != self.generation:
            self._begin(generation)
        self._look += 1
        self._at, self._is_rough = at, bool(ahead_s)
        streams = list(streams)
        self._missing = {each.rank: each.missing for each in streams if each.missing}
        for each in streams:
            self._take(each, world_size, (ahead_s or {}).get(each.rank, 0.0))
        for place, op in list(self._open.items()):
            group = self._groups[place[0]]
            if len(op.arrivals) > 1 and set(op.arrivals) >= group.members:
                self._done(place, self._open.pop(place))
            elif op.came_in <= self._look - PATIENCE:
                del self._open[place]
        for row in self._rows.values():
            if row.new:
                row.windows.append(_window(row.new, at))
                row.new = []
        self._forget_idle()

    def _forget_idle(self) -> None:
        """Beyond the limit: first what was idle longest, then what no two ranks have told of."""
        num_over = len(self._groups) - MAX_GROUPS
        if num_over <= 0:
            return
        by_use = sorted(self._groups, key=lambda key: (self._groups[key].seen_in, self._groups[key].num_done))
        gone = set(by_use[:num_over])
        for key in gone:
            del self._groups[key]
        self._rows = {place: row for place, row in self._rows.items() if place[0] not in gone}
        self._open = {place: op for place, op in self._open.items() if place[0] not in gone}
        self._late = deque((each for each in self._late if each[0] not in gone), maxlen=MAX_LATE)

    def _take(self, stream: RankOps, world_size: int, ahead_s: float) -> None:
        keys: list[Key] = [(name, tuple(stream.groups.get(name, ()))) for name, _, _ in stream.kinds]
        begun = set(stream.begun)
        for number, (kind, seq, entered_at, took_s) in enumerate(stream.ops):
            if not 0 <= kind < len(keys) or not math.isfinite(entered_at):
                continue
            key, (name, op, num_bytes) = keys[kind], stream.kinds[kind]
            group = self._groups.get(key) or self._new_group(key, stream.titles.get(name, ""), world_size)
            group.members.add(stream.rank)
            group.seen_in = self._look
            if seq <= group.newest.get(stream.rank, -1):
                continue  # told before
            group.first.setdefault(stream.rank, seq)
            group.newest[stream.rank] = seq
            if len(self._open) < MAX_OPEN:
                waiting = self._open.setdefault((key, seq), _Open(op, num_bytes, False, self._look))
                waiting.is_queued |= stream.is_queued and number not in begun
                waiting.arrivals[stream.rank] = (entered_at - ahead_s, took_s)
                waiting.num_bytes = num_bytes if num_bytes == waiting.num_bytes else max(num_bytes, waiting.num_bytes)

    def _new_group(self, key: Key, title: str, world_size: int) -> _Group:
        group = self._groups[key] = _Group()
        group.title = title
        group.members = set(key[1]) or (set(range(world_size)) if title == "default_pg" else set())
        return group

    def _done(self, place: tuple[Key, int], op: _Open) -> None:
        key, seq = place
        group = self._groups[key]
        group.num_done += 1
        kind = (key, op.op, op.num_bytes)
        row = self._rows.get(kind)
        if row is None:
            if len(self._rows) >= MAX_ROWS:
                return
            row = self._rows[kind] = _Row()
        row.count += 1
        row.is_queued = op.is_queued
        last = max(op.arrivals, key=lambda rank: op.arrivals[rank][0])
        arrived = [at for at, _ in op.arrivals.values()]
        took = [took_s for _, took_s in op.arrivals.values() if took_s >= 0]
        skew_s = None if op.is_queued else max(arrived) - min(arrived)
        all_known = len(took) == len(op.arrivals)
        row.note(_Sample(statistics.fmean(took) if all_known else None, self._transfer(op, last), skew_s))
        if skew_s is not None and skew_s >= (DOUBT_S if self._is_rough else LATE_S):
            row.num_late += 1
            row.last[last] += 1
            self._late.append((key, op.op, seq, last, skew_s, max(arrived)))

    def _transfer(self, op: _Open, last: int) -> float | None:
        took_s = op.arrivals[last][1]
        return took_s if took_s >= 0 and not op.is_queued else None

    def table(self) -> Table:
        """Return the table as it stands."""
        keys = sorted(self._groups, key=lambda key: (-len(self._groups[key].members), key))
        rows: defaultdict[Key, list[Row]] = defaultdict(list)
        for (key, op, num_bytes), row in self._rows.items():
            rows[key].append(_row(op, num_bytes, row, len(self._groups[key].members)))
        index = {key: number for number, key in enumerate(keys)}
        why: defaultdict[str, list[int]] = defaultdict(list)
        for rank, reason in sorted(self._missing.items()):
            why[reason].append(rank)
        return Table(
            generation=self.generation,
            at=self._at,
            is_rough=self._is_rough,
            groups=tuple(_group(key, self._groups[key], rows[key]) for key in keys),
            late=tuple(Late(index[key], op, seq, rank, skew_s, at) for key, op, seq, rank, skew_s, at in self._late),
            missing={reason: tuple(ranks) for reason, ranks in why.items()},
        )


def _group(key: Key, group: _Group, rows: list[Row]) -> Group:
    spans = [newest - group.first[rank] + 1 for rank, newest in group.newest.items()]
    return Group(
        name=key[0],
        title=group.title,
        ranks=tuple(sorted(group.members)),
        is_declared=bool(key[1]) or group.title == "default_pg",
        num_ops=max(spans, default=None),
        num_seen=group.num_done,
        rows=tuple(sorted(rows, key=lambda row: (-(row.num_bytes or 0) * row.count, row.op))),
    )


def _window(samples: list[_Sample], at: float) -> Window:
    return Window(
        at=at,
        count=len(samples),
        time_s=_median(s.time_s for s in samples),
        transfer_s=_median(s.transfer_s for s in samples),
        skew_s=_median(s.skew_s for s in samples),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _row(op: str, num_bytes: int, row: _Row, num_ranks: int) -> Row:
    """Newest window, and those before it."""
    now = row.windows[-1] if row.windows else Window(at=0.0, count=0)
    size = num_bytes if num_bytes >= 0 else None
    why = QUEUED if row.is_queued else ASYNC
    time_s, transfer_s = _figure(now.time_s, ASYNC), _figure(now.transfer_s, why)
    algbw, transfer_bw = _rate(size, time_s), _rate(size, transfer_s)
    mean_s = _figure(row.timed_s / row.num_timed if row.num_timed else None, ASYNC)
    share = bus_share(op, num_ranks)
    busbw = Figure(algbw.value * share) if algbw.value is not None and share is not None else Figure(why=algbw.why)
    earlier = [size / w.transfer_s for w in list(row.windows)[:-1] if w.transfer_s and size]
    usual = statistics.median(earlier) if earlier else None
    return Row(
        op=op,
        num_bytes=size,
        count=row.count,
        time_s=time_s,
        transfer_s=transfer_s,
        algbw=algbw,
        busbw=busbw,
        transfer_bw=transfer_bw,
        skew_s=_figure(now.skew_s, QUEUED),
        num_late=None if row.is_queued else row.num_late,
        last=tuple(row.last.most_common()),
        usual_bw=_figure(usual, transfer_bw.why or FIRST),
        usual_spread=statistics.median(abs(bw - usual) for bw in earlier) if usual is not None else None,
        mean_s=mean_s,
        mean_bw=_rate(size, mean_s),
        history=tuple(row.windows),
    )


def _figure(value: float | None, why: str) -> Figure:
    return Figure(value) if value is not None else Figure(why=why)


def _rate(size: int | None, time_s: Figure) -> Figure:
    if time_s.value is None:
        return Figure(why=time_s.why)
    if size is None:
        return Figure(why=NO_SIZE)
    if size == 0:
        return Figure(why="it moves no data")
    return Figure(size / time_s.value) if time_s.value > 0 else Figure(why="it took no time that can be measured")
