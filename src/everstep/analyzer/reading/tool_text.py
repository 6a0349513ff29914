"""Claims out of log text: NCCL's watchdog in its several wordings, collective fingerprints, monitored barriers, NCCL's
COLL trace and RAS report, the output of torchfrtrace. Pure and linear; knows no file.

The whole log, and then each line, is asked for a word that it must contain before any pattern is tried.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from everstep.analyzer.observations.claims import Call, Claims, Kind, Named, Work
from everstep.analyzer.reading.init_text import InitText
from everstep.analyzer.reading.lines import Lines
from everstep.analyzer.reading.log_lines import MAX_LINE
from everstep.analyzer.reading.ras_text import SECTIONS, RasText
from everstep.analyzer.reading.trace_text import REPORTED, CollTrace, FlightText

MAX_CLAIMS = 20_000

_CAUGHT = re.compile(
    r"collective operation timeout: Work\w{1,20}\(SeqNum=(\d{1,12}), OpType=(?:(\w{1,40})(?=[,)]))?"
    r"(?:, NumelIn=(\d{1,16}), NumelOut=(\d{1,16})(?=[,)]))?",
    re.I,
)
"""A line may be cut off: the half of an operation's name or of a size is none, and would differ from the others'."""

_TAG = re.compile(r"\[rank ?(\d{1,7})\]:")
_RANK_BEFORE = re.compile(r"\[(?:PG (?:ID )?(\w{1,20})(?: PG GUID (\S{1,60}))? )?Rank (\d{1,7})\]", re.I)
_STATUS = re.compile(
    r"(?:at (?:NCCL )?work(?: sequence id)?: (\d{1,12}).{0,40}?)?"
    r"last enqueued (?:NCCL )?work: (-?\d{1,12}), last completed (?:NCCL )?work: (-?\d{1,12})",
    re.I,
)
_STUCK = re.compile(r"watchdog got stuck for \d{1,9} seconds|Heartbeat monitor timed out", re.I)
_FINGERPRINT = re.compile(r"Rank (\d{1,7}) is running (?:inconsistent )?collective: CollectiveFingerPrint\(", re.I)
_SEQUENCE = re.compile(r"SequenceNumber=(\d{1,12})")
_OP = re.compile(r"OpType=(\w{1,40})(?=[,)])")
_SHAPE = re.compile(r"TensorShape=\[([^\]]{0,200})\]")
_DTYPE = re.compile(r"TensorDtypes=(\w{0,40})")
_BARRIER = re.compile(r"Ranks? ([\d, ]{1,400}) failed to pass monitoredBarrier", re.I)
_AROUND = re.compile(r"collective calls at and around rank (\d{1,7})", re.I)
_TIMEOUTS = ("collective operation timeout", "last enqueued")
_POINTING = ("monitoredBarrier", "around rank", "got stuck", "eartbeat")
_WORLD = re.compile(r"\bworld[_ ]size[=: ]{1,3}(\d{1,6})\b", re.I)


class ToolText:
    """Feed it the lines of one log in order."""

    def __init__(self, rank: int | None = None) -> None:
        self._rank = rank  # of the file, if its name says so
        self._works: dict[tuple[int, str, int | None], Work] = {}
        self._calls: dict[Call, None] = {}
        self._named: dict[Named, None] = {}
        self._speakers: set[int] = set()
        self._world_size: int | None = None
        self._ras = RasText()
        self._flight = FlightText()
        self._trace = CollTrace()
        self._init = InitText()

    def read(self, log: Lines | Iterable[str]) -> Claims:
        log = log if isinstance(log, Lines) else Lines(log)
        self._speakers.update(rank for rank in set(log.ranks) if rank is not None)
        for numbers, read in self._readers(log):
            for number in numbers:
                spoken = log.ranks[number]
                read(log.lines[number][:MAX_LINE], self._rank if spoken is None else spoken)
        stands = () if _trains_after(log, "- Init START") else self._init.named()
        named = (*self._named, *self._ras.named(), *self._flight.named(), *stands)
        sizes = [size for size in (self._world_size, self._ras.num_ranks) if size is not None]
        return Claims(
            works=tuple(self._works.values()),
            calls=tuple(self._calls),
            last_calls=self._trace.last_calls(),
            named=named,
            world_size=max(sizes, default=None),
            speakers=tuple(sorted(self._speakers)),
        )

    def _readers(self, log: Lines) -> "Iterator[tuple[Iterable[int], Callable[[str, int | None], None]]]":
        """Yield the lines for each reader: those with words without which the text holds nothing for that reader."""
        if log.says(*_TIMEOUTS):
            yield log.numbers_of(*_TIMEOUTS), self._watchdog
        if log.has("CollectiveFingerPrint"):
            yield log.numbers_with("CollectiveFingerPrint"), self._fingerprint
        if log.has(*_POINTING):
            yield log.numbers_with(*_POINTING), self._pointed
        if log.has("orld") and log.says("world_size", "world size"):
            yield log.numbers_with("orld"), self._size
        if log.has("Job summary") or (log.has("#") and log.has(*SECTIONS)):
            yield range(len(log.lines)), self._report
        if log.has(*REPORTED):
            yield range(len(log.lines)), self._records
        if log.has("NCCL INFO") and log.has("opCount"):
            yield log.numbers_with("NCCL INFO"), self._calls_of_nccl

        if log.has("- Init START"):
            yield log.numbers_with("- Init START", "- Init COMPLETE"), self._inits

    def _has_room(self) -> bool:
        return len(self._works) + len(self._calls) + len(self._named) < MAX_CLAIMS

    def _size(self, line: str, _rank: int | None) -> None:
        if found := _WORLD.search(line):
            self._world_size = max(self._world_size or 0, int(found[1]))

    def _report(self, line: str, _rank: int | None) -> None:
        self._ras.line(line)

    def _records(self, line: str, _rank: int | None) -> None:
        self._flight.line(line)

    def _calls_of_nccl(self, line: str, _rank: int | None) -> None:
        self._trace.line(line)

    def _inits(self, line: str, _rank: int | None) -> None:
        self._init.line(line)

    def _watchdog(self, line: str, rank: int | None) -> None:
        if not self._has_room():
            return
        caught, status = _CAUGHT.search(line), _STATUS.search(line)
        if caught is None and status is None:
            return
        group, who = "", rank
        for found in _RANK_BEFORE.finditer(line[:400]):
            who = int(found[3])
            group = _group(found[1], found[2]) or group
        tag = _TAG.search(line[:200])
        if tag is not None:  # the number behind the group's name is the rank's place within that group
            who = int(tag[1])
        if who is None:
            return
        if caught is not None:
            size = f"{caught[3]} -> {caught[4]} elements" if caught[3] else ""
            self._note(Work(rank=who, group=group, op=(caught[2] or "").lower(), size=size, seq=int(caught[1])))
        if status is not None:
            seq = int(status[1]) if status[1] else None
            self._note(Work(rank=who, group=group, seq=seq, enqueued=int(status[2]), completed=int(status[3])))

    def _note(self, work: Work) -> None:
        """Several lines tell of one: each gives what the others leave out."""
        for key, known in reversed(list(islice(reversed(self._works.items()), 64))):
            same_group = not work.group or not known.group or work.group == known.group
            same_seq = work.seq is None or known.seq is None or work.seq == known.seq
            if known.rank == work.rank and same_group and same_seq:
                self._works[key] = Work(
                    rank=work.rank,
                    group=known.group or work.group,
                    op=known.op or work.op,
                    size=known.size or work.size,
                    seq=known.seq if known.seq is not None else work.seq,
                    enqueued=known.enqueued if known.enqueued is not None else work.enqueued,
                    completed=known.completed if known.completed is not None else work.completed,
                )
                return
        self._works[work.rank, work.group, work.seq] = work

    def _fingerprint(self, line: str, _rank: int | None) -> None:
        """Who ran what, as the rank tells it that found a mismatch. Where their numbers differ, the number is the
        difference. Ranks also say of themselves what they run, and nothing is wrong then."""
        if not self._has_room():
            return
        starts = list(_FINGERPRINT.finditer(line))
        if not starts:
            return
        told = []
        for found, following in zip(starts, [*(s.start() for s in starts[1:]), len(line)], strict=True):
            text = line[found.end() : following]
            op, seq, shape, dtype = (_first(p, text) for p in (_OP, _SEQUENCE, _SHAPE, _DTYPE))
            is_whole = ")" in text  # else the line is cut off
            form = " ".join(part for part in (f"[{shape}]" if shape else "", dtype) if part and is_whole)
            told.append((int(found[1]), op.lower(), seq, form))
        is_apart = len({seq for _, _, seq, _ in told}) > 1
        for rank, op, seq, form in told:
            name = f"{op} #{seq}" if is_apart and op and seq else op
            self._calls[Call(rank=rank, seq=int(seq) if seq and not is_apart else None, op=name, form=form)] = None

    def _pointed(self, line: str, rank: int | None) -> None:
        if not self._has_room():
            return
        if found := _BARRIER.search(line):
            ranks = tuple(int(part) for part in re.findall(r"\d{1,7}", found[1]))
            self._named[_named("monitored barrier", Kind.MISSING, ranks, "did not reach the monitored barrier")] = None
        if found := _AROUND.search(line):
            says = "called something else than the others, says NCCL"
            self._named[_named("NCCL", Kind.MISMATCH, (int(found[1]),), says)] = None
        if rank is not None and _STUCK.search(line):
            says = "did not return from a CUDA or NCCL call: the thread that watches collectives stood still"
            self._named[_named("watchdog", Kind.STUCK, (rank,), says)] = None


def _trains_after(log: Lines, words: str) -> bool:
    """Whether a loss stands behind the last line with these words: whatever they announce has come to its end."""
    last = next((number for number in range(len(log.lines) - 1, -1, -1) if words in log.lines[number]), None)
    return last is not None and any("loss" in line for line in log.lowered[last:])


def _group(number: str | None, guid: str | None) -> str:
    if guid:
        return guid
    return f"PG {number}" if number else ""


def _first(pattern: "re.Pattern[str]", text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""


def _named(source: str, kind: Kind, ranks: tuple[int, ...], says: str) -> Named:
    return Named(source=source, kind=kind, ranks=ranks, says=says)
