"""Ranks that called something else than the others at the same place of a sequence. Pure; used by `localise`."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeAlias

from everstep.analyzer.observations.finding import Finding
from everstep.analyzer.observations.positions import Positions
from everstep.analyzer.observations.records import Collective, FlightRecord, ParallelGroup
from everstep.analyzer.observations.words import operation, ranks_text
from everstep.model.verdict import Confidence, Evidence

_EQUAL_INPUT = frozenset({
    "all_reduce", "allreduce", "broadcast", "reduce", "all_gather", "_all_gather_base", "all_gather_single",
    "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "allreduce_coalesced",
})  # fmt: skip
"""Operations whose input has one size on all ranks. Scatter, gather, all_to_all and the *_v forms may differ."""

_ALIASES = {"allreduce": "all_reduce", "all_reduce_barrier": "barrier"}
HABIT_LENGTH = 12
"""Operations of context by which the next one is foretold. Shorter: DDP's equal buckets look alike. Longer: steps with
an extra collective (evaluation, clipping) match nothing."""

MAX_LOOKED_BACK = 64
"""Operations since the group was last used, at most: a step of a large model."""

Token: TypeAlias = tuple[str, str, Hashable]


def find_mismatch(positions: Positions, waits: dict[int, list[Collective]], at: float) -> Finding | None:
    """The first place at which a rank waits and not all ranks called the same."""
    found: dict[tuple[int, int], tuple[int, ParallelGroup]] = {}
    for rank, entries_of_rank in waits.items():
        for entry in entries_of_rank:
            if not entry.is_p2p:
                group = positions.group(entry.group, rank)
                found.setdefault((entry.seq, id(group)), (entry.seq, group))
    places = sorted(found.values(), key=lambda place: (place[0], place[1].name, place[1].ranks))
    for seq, group in places:
        entries = {}
        for rank in group.ranks:
            called = positions.called(group.name, rank, seq)
            if called is not None:
                entries[rank] = called
        if len(entries) > 1:
            finding = _compare(positions, group, entries, at)
            if finding:
                return finding
    return None


def _compare(positions: Positions, group: ParallelGroup, entries: dict[int, Collective], at: float) -> Finding | None:
    operations = {rank: _ALIASES.get(entry.op, entry.op) for rank, entry in entries.items()}
    if len(set(operations.values())) > 1:
        return _finding(positions, group, entries, operations, "operation", at)
    if next(iter(operations.values())) not in _EQUAL_INPUT:
        return None
    compared: tuple[tuple[str, Mapping[int, Hashable]], ...] = (
        ("size", {rank: entry.input_sizes for rank, entry in entries.items()}),
        ("data type", {rank: entry.input_dtypes for rank, entry in entries.items()}),
    )
    for what, values in compared:
        if len(set(values.values())) > 1:
            return _finding(positions, group, entries, values, what, at)
    return None


def _finding(
    positions: Positions,
    group: ParallelGroup,
    entries: dict[int, Collective],
    values: Mapping[int, Hashable],
    what: str,
    at: float,
) -> Finding:
    usual, clear = _usual(positions, entries, values)
    if not clear and what == "operation":
        called = _called_by_siblings(positions, group, next(iter(entries.values())).seq)
        usual, clear = (called, True) if called in values.values() else (usual, clear)
    ranks = tuple(rank for rank in entries if values[rank] != usual) if clear else tuple(entries)
    others = tuple(rank for rank in entries if rank not in ranks) or ranks
    first, other = entries[ranks[0]], entries[others[0]]
    if what == "operation":
        text = f"{ranks_text(ranks)} called {operation(first, group)} where {ranks_text(others)} called {other.op}."
        code = "ES-H03"
    else:
        text = (
            f"{ranks_text(ranks)} called {operation(first, group)} with {what} {_plain(values[ranks[0]])}, "
            f"{ranks_text(others)} with {_plain(values[others[0]])}."
        )
        code = "ES-H04"
    if not clear:
        listed = ", ".join(f"rank {rank}: {_plain(values[rank])}" for rank in list(entries)[:8])
        text = f"the ranks of {group.title} differ in {what} at #{first.seq} ({listed}); no majority says who is right."
    return Finding(
        code=code,
        sentence=text,
        confidence=Confidence.HIGH if clear else Confidence.LOW,
        ranks=ranks,
        waiting=tuple(rank for rank in others if rank not in ranks),
        group=group,
        place=first.place,
        evidence=tuple(_says(at, rank, entries[rank], group) for rank in (*ranks[:8], *others[:2])),
    )


def _called_by_siblings(positions: Positions, group: ParallelGroup, seq: int) -> str | None:
    """Return the operation that the other groups of the same kind all called at that place: the same program on other
    ranks. None: they differ, or fewer than two of them show it."""
    called: dict[str, set[str]] = {}
    for other in positions.groups.values():
        if other.desc != group.desc or len(other.ranks) != len(group.ranks) or set(other.ranks) & set(group.ranks):
            continue
        for rank in other.ranks:
            entry = positions.called(other.name, rank, seq)
            if entry is not None:
                called.setdefault(other.name, set()).add(_ALIASES.get(entry.op, entry.op))
    every = set().union(*called.values()) if called else set()
    return every.pop() if len(called) > 1 and len(every) == 1 and group.desc else None


def _usual(
    positions: Positions, entries: dict[int, Collective], values: Mapping[int, Hashable]
) -> tuple[Hashable, bool]:
    """Return what most ranks did, and whether that is clear. A draw is decided by what each rank did in its earlier
    steps."""
    ranking = Counter(values.values()).most_common(2)
    if len(ranking) == 1 or ranking[0][1] > ranking[1][1]:
        return ranking[0][0], True
    true_to_habit = {v for r, v in values.items() if breaks_habit(positions.records[r], entries[r]) is False}
    if len(true_to_habit) == 1:
        return true_to_habit.pop(), True
    return ranking[0][0], False


def breaks_habit(record: FlightRecord, entry: Collective) -> bool | None:
    """Whether the rank did something else here than after the same operations earlier. None: nothing to compare."""
    ids = record.entries.record_ids
    at = next((i for i, record_id in enumerate(ids) if record_id == entry.record_id), None)
    return None if at is None else _breaks_at(_tokens(record), at)


def left_habit(record: FlightRecord, group: str) -> bool:
    """Whether the rank did something else than usual since it was last in `group`, where others wait for it now. What
    was left out or put off shows where it should have been, not only at the end."""
    tokens = _tokens(record)
    last = next((i for i in range(len(tokens) - 1, -1, -1) if tokens[i][0] == group), -1)
    first = max(last + 1, len(tokens) - MAX_LOOKED_BACK)
    return any(_breaks_at(tokens, at) for at in range(first, len(tokens)))


def _breaks_at(tokens: Sequence[Token], at: int) -> bool | None:
    for length in range(min(HABIT_LENGTH, at - 1), 1, -1):
        expected = _after(tokens[:at], tokens[at - length : at])
        if expected is not None:
            return expected != tokens[at]
    return None


def _after(history: Sequence[Token], context: Sequence[Token]) -> Token | None:
    """Return what followed the newest earlier occurrence of `context`; None: there is no earlier one."""
    for start in range(len(history) - len(context) - 1, -1, -1):
        if history[start : start + len(context)] == context:
            return history[start + len(context)]
    return None


def _tokens(record: FlightRecord) -> list[Token]:
    return [(kind.group, kind.op, kind.input_sizes) for kind in record.entries.ordered()]


def _plain(value: Hashable) -> str:
    if isinstance(value, tuple):
        return " ".join(str(list(v)) if isinstance(v, tuple) else str(v) for v in value) or "nothing"
    return str(value)


def _says(at: float, rank: int, entry: Collective, group: ParallelGroup) -> Evidence:
    called = f", called at {entry.place}" if entry.place else ""
    says = f"{operation(entry, group)}, sizes {_plain(entry.input_sizes)}, {_plain(entry.input_dtypes)}{called}"
    return Evidence(at=at, source="flight record", says=says, rank=rank)
