"""Collectives in a rank's flight record, for the vote on slow ranks and for the table of collectives."""

import array
from collections.abc import Sequence

import msgspec

from everstep.analyzer.collective.calls import durations
from everstep.analyzer.collective.device import DeviceOp, join
from everstep.analyzer.collective.volume import num_bytes
from everstep.model.collective import Kind, Op, RankOps
from everstep.wire import local

MAX_NAME = 200
MAX_NAMED = 1 << 17
"""Ranks that one rank names in all its groups: the reports of a node's ranks are one message, which has a limit."""

MAX_CALL_WORDS = 3 * 4096
_NCCL = "nccl:"


class Entry(msgspec.Struct, frozen=True):
    """The needed fields of torch's entry."""

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
    """The collectives that the ranks of this node entered since they were asked before."""

    def __init__(self) -> None:
        self._told: dict[int, int] = {}  # process id -> newest entry that was reported
        self._held: dict[int, int] = {}  # ... and the entry that may have been under way
        self._found: list[RankOps] = []

    def begin(self, pids: set[int]) -> None:
        """Another round, of these processes."""
        self._told = {pid: number for pid, number in self._told.items() if pid in pids}
        self._held = {pid: number for pid, number in self._held.items() if pid in pids}
        self._found = []

    def take(
        self,
        rank: int,
        pid: int,
        entries: list[Entry],
        answer: local.Frame,
        groups: Declared,
        limit: int,
        device: Sequence[DeviceOp] = (),
    ) -> None:
        """Take the new entries. `device`: what NCCL's profiler plug-in recorded in this process."""
        after = self._told.get(pid, -1)
        new = sorted((entry for entry in entries if entry.record_id > after), key=lambda each: each.record_id)
        times = _times(new, answer, device)
        begun = _under_way(new, times)
        if begun is not None and new[begun].record_id != self._held.get(pid):
            # Hold it back once: the next round reports it with its time. Else the longest ones would be left out of the
            # mean.
            self._held[pid] = new[begun].record_id
            new, times = new[:begun], times[:begun]
        self._told[pid] = new[-1].record_id if new else after
        self._found.append(rank_ops(rank, new[-limit:], times[-limit:], groups, num_entered=self._told[pid] - after))

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


class Times(msgspec.Struct, frozen=True):
    """The times of one operation on one rank."""

    took_s: float  # -1: not known
    begun_at: float | None = None  # its kernels began on the device; None: only when it was queued is known
    is_open: bool = False  # NCCL has it, and it is not over


def rank_ops(
    rank: int, entries: Sequence[Entry], times: Sequence[Times], groups: Declared, *, num_entered: int
) -> RankOps:
    """The operations of these entries, oldest first."""
    kinds: dict[Kind, int] = {}
    ops: list[Op] = []
    for entry, known in zip(entries, times, strict=True):
        kind = kinds.setdefault((entry.process_group[0][:MAX_NAME], entry.op[:MAX_NAME], _size(entry)), len(kinds))
        entered_at = entry.time_created_ns / 1e9 if known.begun_at is None else known.begun_at
        ops.append((kind, entry.collective_seq_id, entered_at, known.took_s))
    return RankOps(
        rank=rank,
        kinds=tuple(kinds),
        ops=tuple(ops),
        num_entered=num_entered,
        groups={name: ranks for name, (_, ranks) in groups.items()},
        titles={entry.process_group[0][:MAX_NAME]: entry.process_group[1][:MAX_NAME] for entry in entries},
        is_queued=any(entry.is_queued for entry in entries),
        begun=tuple(number for number, known in enumerate(times) if known.begun_at is not None),
    )


def _under_way(entries: Sequence[Entry], times: Sequence[Times]) -> int | None:
    """The first of the entries that may still be under way: those after which their thread has entered nothing, and
    what a device has not done."""
    newest = {entry.thread_id: number for number, entry in enumerate(entries)}
    waiting = [number for number in newest.values() if times[number].took_s < 0 and not entries[number].is_queued]
    return min([*waiting, *(number for number, known in enumerate(times) if known.is_open)], default=None)


def _times(entries: Sequence[Entry], answer: local.Frame, device: Sequence[DeviceOp]) -> list[Times]:
    calls = _calls(answer.get("calls"))
    entered = [(int(e.thread_id) if e.thread_id.isdecimal() else -1, e.time_created_ns) for e in entries]
    found = durations(entered, calls)
    queued = [number for number, entry in enumerate(entries) if entry.is_queued]
    keys = [(entries[i].op, _size(entries[i]), entries[i].time_created_ns / 1e9) for i in queued]
    own = dict(zip(queued, join(keys, device), strict=True))
    return [_of_device(each, own[i]) if each.is_queued else Times(found[i]) for i, each in enumerate(entries)]


def _of_device(entry: Entry, own: DeviceOp | None) -> Times:
    """Return the time that a device took: by NCCL's profiler plug-in, or where torch was set to time it; the call
    itself only queued the operation."""
    if own is not None and own.took_s is not None:
        return Times(own.took_s, own.begin_at)
    timed_s = entry.duration_ms / 1e3 if entry.duration_ms is not None and entry.duration_ms >= 0 else -1.0
    return Times(timed_s, is_open=own is not None and own.is_open and timed_s < 0)


def _size(entry: Entry) -> int:
    return num_bytes(entry.op, entry.input_sizes, entry.input_dtypes, entry.output_sizes, entry.output_dtypes)


def _calls(data: object) -> list[tuple[int, int, int]]:
    """Words of 64 bits as `worker/link/entered.py` writes them: thread, begin, end."""
    if not isinstance(data, bytes) or len(data) % 24:
        return []
    words = array.array("q")
    words.frombytes(data[-8 * MAX_CALL_WORDS :])
    return list(zip(words[0::3], words[1::3], words[2::3], strict=True))
