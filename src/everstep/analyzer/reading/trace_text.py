"""Text of two tracers: torchfrtrace's report on flight records, and NCCL's COLL lines (`NCCL_DEBUG_SUBSYS=COLL`)."""

import re

from everstep.analyzer.observations.claims import Call, Kind, Named
from everstep.analyzer.observations.frames import is_user_file

REPORTED = ("missing ranks: {", "Culprit rank ", "missed FR dumps from ranks")
"""Without any of these torchfrtrace names nobody."""

_MISSING = re.compile(r"\bmissing ranks: \{([\d, ]{1,4000})\}")
_CULPRIT = re.compile(r"Culprit rank (\d{1,7}); ([^,]{1,200})")
_COLLECTIVE = re.compile(r"^\s*(?:\S{0,30} )?collective: (\S{1,80})")
_GROUP = re.compile(r"group info: \w{1,20}:(\S{1,80})")
_EXPECTED = re.compile(r"\bexpected ranks: \{([\d, ]{1,40000})\}")
_FRAME = re.compile(r"^\s{0,8}(\S{1,100}) at (\S{1,300}):(\d{1,7})\s*$")
_HEAD = re.compile(r"(?:Not all ranks joining collective|Collective sequence number|mismatch in the collective)", re.I)
_SEQ = re.compile(r"sequence number:? (\d{1,12})")
_NO_DUMPS = re.compile(r"missed FR dumps from ranks \(\{?([\d, ]{1,4000})\}?\)")

_TRACED = re.compile(
    r"(\S{1,120}:\d{1,9}):\d{1,9} \[(\d{1,3})\] NCCL INFO (\w{3,20}): opCount ([0-9a-fA-F]{1,16}) "
    r".{0,200}?\bcount (\d{1,15}) datatype (\d{1,3}).{0,80}?\bcomm (0x[0-9a-fA-F]{1,16}) \[nranks=(\d{1,7})\]"
)
_COMM = re.compile(
    r"(\S{1,120}:\d{1,9}):\d{1,9} \[\d{1,3}\] NCCL INFO .{0,60}?comm (0x[0-9a-fA-F]{1,16}) rank (\d{1,7}) "
    r"n[rR]anks (\d{1,7}).{0,120}?commId (0x[0-9a-fA-F]{1,20})"
)
MAX_COMMS = 100_000


class FlightText:
    """Reader of torchfrtrace's output on each collective that did not match."""

    def __init__(self) -> None:
        self._named: dict[Named, None] = {}
        self._said: list[tuple[Kind, tuple[int, ...], str]] = []  # of the collective at hand, whose place comes last
        self._start("")

    def _start(self, seq: str) -> None:
        self._tell()
        self._seq, self._op, self._group, self._place = seq, "", "", ""
        self._expected: tuple[int, ...] = ()

    def line(self, line: str) -> None:
        if self._said and not self._place and (frame := _FRAME.match(line)) and is_user_file(frame[2]):
            self._place = f"{frame[2].rpartition('/')[2]}:{frame[3]} {frame[1]}"
        if "rank" not in line and "ollective" not in line and "group" not in line:
            return
        if _HEAD.search(line):
            found = _SEQ.search(line)
            self._start(found[1] if found else "")
        elif found := _COLLECTIVE.match(line):
            self._op = found[1].rpartition(":")[2]
        elif found := _GROUP.search(line):
            self._group = found[1]
        if found := _EXPECTED.search(line):
            self._expected = _numbers(found[1])
        if found := _MISSING.search(line):
            self._say(Kind.MISSING, _numbers(found[1]), "did not join {what}")
        for found in _CULPRIT.finditer(line):
            self._say(Kind.MISMATCH, (int(found[1]),), f"did not fit in {{what}}: {found[2].strip()}")
        if found := _NO_DUMPS.search(line):
            self._say(Kind.SILENT, _numbers(found[1]), "left no flight record")

    def _say(self, kind: Kind, ranks: tuple[int, ...], says: str) -> None:
        if ranks and len(self._named) + len(self._said) < 10_000:
            self._said.append((kind, ranks, says))

    def _tell(self) -> None:
        said, self._said = self._said, []
        for kind, ranks, says in said:
            others = tuple(rank for rank in self._expected if rank not in ranks) if kind is Kind.MISSING else ()
            text = says.replace("{what}", self._what())
            self._named[Named(source="torchfrtrace", kind=kind, ranks=ranks, says=text, others=others)] = None

    def _what(self) -> str:
        place = f", called at {self._place}" if self._place else ""
        group = f" of {self._group}" if self._group else ""
        return f"{self._op or 'the collective'}{f' #{self._seq}' if self._seq else ''}{group}{place}"

    def named(self) -> tuple[Named, ...]:
        self._tell()
        return tuple(self._named)


class CollTrace:
    """The newest call of each process on each communicator."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[str, str], tuple[int, str]] = {}  # process, pointer -> rank, communicator
        self._last: dict[tuple[str, str], tuple[str, int, str, str]] = {}  # -> operation, number, form, nranks

    def line(self, line: str) -> None:
        if "NCCL INFO" not in line:
            return
        if "opCount" in line and (found := _TRACED.search(line)):
            key = found[1], found[7]
            if key in self._last or len(self._last) < MAX_COMMS:
                form = f"count {found[5]} datatype {found[6]}"
                self._last[key] = found[3].lower(), int(found[4], 16), form, found[8]
        elif "commId" in line and (found := _COMM.search(line)) and len(self._ranks) < MAX_COMMS:
            self._ranks[found[1], found[2]] = int(found[3]), found[5]

    def last_calls(self) -> tuple[Call, ...]:
        """Only of communicators whose ranks the log told."""
        return tuple(
            Call(rank=rank, group=group, seq=seq, op=op, form=form)
            for key, (op, seq, form, _) in self._last.items()
            if key in self._ranks
            for rank, group in (self._ranks[key],)
        )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,7}", text))
