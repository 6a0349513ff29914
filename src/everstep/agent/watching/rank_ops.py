"""What a rank's flight record says of its collectives, for the vote on slow ranks and for the table of collectives."""

import array
from collections.abc import Sequence

import msgspec

from everstep.analyzer.collective.calls import durations
from everstep.analyzer.collective.volume import num_bytes
from everstep.model.collective import Kind, Op, RankOps
from everstep.wire import local

MAX_NAME = 200
MAX_NAMED = 1 << 17
"""Ranks that one rank names in all its groups: the reports of a node's ranks are one message, which has a limit."""

MAX_CALL_WORDS = 3 * 4096
_NCCL = "nccl:"


class Entry(msgspec.Struct, frozen=True):
    """As much of torch's as is needed."""

    record_id: int
    process_group: tuple[str, str]
    profiling_name: str
    collective_seq_id: int
    time_created_ns: int
    input_sizes: list[list[int]] = []
    input_dtypes: list[str] = []
    output_sizes: list[list[int]] = []
    output_dtypes: list[str] = []
    thread_id: str = ""
    duration_ms: float | None = None
    is_p2p: bool = False

    @property
    def op(self) -> str:
        return self.profiling_name.partition(":")[2] or self.profiling_name

    @property
    def is_queued(self) -> bool:
        return self.profiling_name.startswith(_NCCL)


class _Record(msgspec.Struct, frozen=True):
    entries: list[Entry] = []


_decoder = msgspec.json.Decoder(_Record)

Declared = dict[str, tuple[str, tuple[int, ...]]]


class Streams:
    """What the ranks of this node entered since they were asked before."""

    def __init__(self) -> None:
        self._told: dict[int, int] = {}  # process id -> newest entry that was told
        self._held: dict[int, int] = {}  # ... and the entry that may have been under way
        self._found: list[RankOps] = []

    def begin(self, pids: set[int]) -> None:
        """Another round, of these processes."""
        self._told = {pid: number for pid, number in self._told.items() if pid in pids}
        self._held = {pid: number for pid, number in self._held.items() if pid in pids}
        self._found = []

    def take(
        self, rank: int, pid: int, entries: list[Entry], answer: local.Frame, groups: Declared, limit: int
    ) -> None:
        after = self._told.get(pid, -1)
        new = sorted((entry for entry in entries if entry.record_id > after), key=lambda each: each.record_id)
        took_s = _durations(new, answer)
        begun = _under_way(new, took_s)
        if begun is not None and new[begun].record_id != self._held.get(pid):
            # Once: it is told with its time in the next round. Else what is long would be left out of the mean.
            self._held[pid] = new[begun].record_id
            new, took_s = new[:begun], took_s[:begun]
        self._told[pid] = new[-1].record_id if new else after
        self._found.append(rank_ops(rank, new[-limit:], took_s[-limit:], groups, num_entered=self._told[pid] - after))

    def nothing(self, rank: int, why: str) -> None:
        self._found.append(RankOps(rank=rank, missing=why[:MAX_NAME]))

    def all(self) -> tuple[RankOps, ...]:
        return tuple(self._found)


def entries_of(answer: local.Frame, data: bytes) -> list[Entry]:
    """Collectives of all groups. Raises ValueError with the reason why there are none."""
    if "why" in answer:
        raise ValueError(str(answer["why"]))
    entries = [entry for entry in _decoder.decode(data).entries if not entry.is_p2p]
    if not entries:
        raise ValueError("the flight record is empty: TORCH_FR_BUFFER_SIZE is 0, or there are no collectives")
    return entries


def declared(answer: local.Frame) -> Declared:
    """Groups that the rank names: title and ranks by name."""
    try:
        found = {
            str(name)[:MAX_NAME]: (str(title)[:MAX_NAME], tuple(map(int, ranks)))
            for name, title, ranks in answer.get("groups", [])
        }
    except (TypeError, ValueError, OverflowError):
        return {}
    named = [rank for _, ranks in found.values() for rank in ranks]
    is_sane = len(named) <= MAX_NAMED and all(0 <= rank < 1 << 31 for rank in named)
    return found if is_sane else {}


def rank_ops(
    rank: int, entries: Sequence[Entry], took_s: Sequence[float], groups: Declared, *, num_entered: int
) -> RankOps:
    """Of these entries, oldest first."""
    kinds: dict[Kind, int] = {}
    ops: list[Op] = []
    for entry, seconds in zip(entries, took_s, strict=True):
        size = num_bytes(entry.op, entry.input_sizes, entry.input_dtypes, entry.output_sizes, entry.output_dtypes)
        kind = kinds.setdefault((entry.process_group[0][:MAX_NAME], entry.op[:MAX_NAME], size), len(kinds))
        ops.append((kind, entry.collective_seq_id, entry.time_created_ns / 1e9, seconds))
    return RankOps(
        rank=rank,
        kinds=tuple(kinds),
        ops=tuple(ops),
        num_entered=num_entered,
        groups={name: ranks for name, (_, ranks) in groups.items()},
        titles={entry.process_group[0][:MAX_NAME]: entry.process_group[1][:MAX_NAME] for entry in entries},
        is_queued=any(entry.is_queued for entry in entries),
    )


def _under_way(entries: Sequence[Entry], took_s: Sequence[float]) -> int | None:
    """The first of the entries that may still be under way: those after which their thread has entered nothing."""
    newest = {entry.thread_id: number for number, entry in enumerate(entries)}
    waiting = [number for number in newest.values() if took_s[number] < 0 and not entries[number].is_queued]
    return min(waiting, default=None)


def _durations(entries: Sequence[Entry], answer: local.Frame) -> list[float]:
    calls = _calls(answer.get("calls"))
    entered = [(int(e.thread_id) if e.thread_id.isdecimal() else -1, e.time_created_ns) for e in entries]
    found = durations(entered, calls)
    # What a device took is known where torch was told to time it; the call itself only queued the operation.
    timed = [e.duration_ms / 1e3 if e.duration_ms is not None and e.duration_ms >= 0 else -1.0 for e in entries]
    return [timed[i] if each.is_queued else found[i] for i, each in enumerate(entries)]


def _calls(data: object) -> list[tuple[int, int, int]]:
    """Words of 64 bits as `worker/link/entered.py` writes them: thread, begin, end."""
    if not isinstance(data, bytes) or len(data) % 24:
        return []
    words = array.array("q")
    words.frombytes(data[-8 * MAX_CALL_WORDS :])
    return list(zip(words[0::3], words[1::3], words[2::3], strict=True))
