"""Text of two tracers: torchfrtrace's report on flight records, and NCCL's COLL lines (`NCCL_DEBUG_SUBSYS=COLL`)."""

import re

from everstep.analyzer.observations.claims import Call, Kind, Named

REPORTED = ("missing ranks: {", "Culprit rank ", "missed FR dumps from ranks")
"""Without any of these torchfrtrace names nobody."""

_MISSING = re.compile(r"\bmissing ranks: \{([\d, ]{1,4000})\}")
_CULPRIT = re.compile(r"Culprit rank (\d{1,7}); ([^,]{1,200})")
_COLLECTIVE = re.compile(r"^\s*(?:\S{0,30} )?collective: (\S{1,80})")
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
    """What torchfrtrace prints of each collective that did not match."""

    def __init__(self) -> None:
        self._named: dict[Named, None] = {}
        self._seq = ""
        self._op = ""

    def line(self, line: str) -> None:
        if "rank" not in line and "ollective" not in line:
            return
        if _HEAD.search(line):
            found = _SEQ.search(line)
            self._seq, self._op = (found[1] if found else ""), ""
        elif found := _COLLECTIVE.match(line):
            self._op = found[1].rpartition(":")[2]
        if found := _MISSING.search(line):
            self._add(Kind.MISSING, _numbers(found[1]), f"did not join {self._what()}")
        for found in _CULPRIT.finditer(line):
            self._add(Kind.MISMATCH, (int(found[1]),), f"does not fit in {self._what()}: {found[2].strip()}")
        if found := _NO_DUMPS.search(line):
            self._add(Kind.SILENT, _numbers(found[1]), "left no flight record")

    def _what(self) -> str:
        return f"{self._op or 'the collective'}{f' #{self._seq}' if self._seq else ''}"

    def _add(self, kind: Kind, ranks: tuple[int, ...], says: str) -> None:
        if ranks and len(self._named) < 10_000:
            self._named[Named(source="torchfrtrace", kind=kind, ranks=ranks, says=says)] = None

    def named(self) -> tuple[Named, ...]:
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
