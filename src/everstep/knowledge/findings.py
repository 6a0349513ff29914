"""What was found: one finding per fault, however many ranks and lines repeat it, in bounded memory.

Called by `matcher`; read by `ranking`, the command line and everything that acts on a verdict.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from everstep.knowledge.signature import Action, Role, Severity, Signature
from everstep.model.verdict import Blame

MAX_TEXT_BYTES = 2000
MAX_FINDINGS = 4096
"""Different findings kept. A stream with more different ones than this is unreadable anyway."""
MAX_SEEN = 64
"""Ranks, sources and occurrences remembered per finding; further ones are counted."""

_SUBJECT = re.compile(
    rb"\(?(?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-f])?)"
    rb"|\b(mlx[45]_\d+|nvme\d+|ib\d+|eth\d+|bond\d+|nvidia-nvswitch\d+)"
    rb"|server ([\w.:-]{1,80}) (?:not|OK|is)"
    rb"|\b(?:GPU|device|NPU|Device|npu) ?#?(\d{1,3})\b"
    rb"|\bdev(?:ice)? (\w{2,20})\b"
)
_CHANGING = re.compile(rb"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8,}\b|\d+")
_PID = re.compile(rb"\bpid[=:]? ?'?(\d{1,9})")
_SPOT = re.compile(rb"\(GPC \d+, TPC \d+(?:, SM \d+)?\)|GPC\d+ GPCCLIENT_\w+")


@dataclasses.dataclass(frozen=True, slots=True)
class Occurrence:
    """One of the lines that were folded into a finding."""

    at: float | None
    pid: str
    spot: str  # where on the device, if the line says so


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fault that was recognised, with its first line. `at` is on the wall clock; None: not known."""

    code: str
    klass: str
    component: str
    title: str
    blame: Blame
    severity: Severity
    role: Role
    action: Action
    text: str
    source: str
    line: int  # 1-based
    seq: int  # order in which it was read
    specificity: int = 50
    at: float | None = None
    count: int = 1
    ranks: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    subject: str = ""  # device, server or address that the line names
    place: str = ""  # "train.py:212" for tracebacks
    family: str = ""
    after: tuple[str, ...] = ()
    recovers: tuple[str, ...] = ()
    occurrences: tuple[Occurrence, ...] = ()
    last_seq: int = 0
    explained_by: str = ""  # code of the finding that caused this one
    note: str = ""  # why something was changed from what the signature says
    from_kernel: bool = False  # the kernel said it, not a program
    is_exception: bool = False  # the last line of a traceback
    is_chained: bool = False  # its traceback names an earlier one as its reason
    is_handled: bool = False  # the program caught it each time, and failed at something else then
    is_calm: bool = False  # a warning or got over wherever it was seen: nobody says that it ended anything
    moved_on: bool = False  # training steps stand after its last line, wherever it was seen
    last_line: int = 0  # of its source: where it was seen last
    lines_after: int = 0  # that its source has behind that
    finished_line: int = 0  # where its source had said before each occurrence that the training was over; 0: it had not

    @property
    def acts(self) -> bool:
        return self.action.acts

    def to_json(self) -> dict[str, Any]:
        """The object of `everstep kb match --json`."""
        fixed: dict[str, Any] = {
            "code": self.code,
            "class": self.klass,
            "component": self.component,
            "blame": str(self.blame),
            "severity": str(self.severity),
            "role": str(self.role),
            "action": str(self.action),
            "line": self.line,
            "text": self.text,
            "title": self.title,
            "source": self.source,
            "count": self.count,
        }
        optional = {
            "at": self.at,
            "ranks": list(self.ranks) or None,
            "subject": self.subject or None,
            "place": self.place or None,
            "explained_by": self.explained_by or None,
            "note": self.note or None,
        }
        return fixed | {key: value for key, value in optional.items() if value is not None}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Where and how a line was seen. Devices of different sources are different devices."""

    source: str
    line: int
    at: float | None
    rank: int | None
    place: str = ""
    from_kernel: bool = False
    is_exception: bool = False
    is_chained: bool = False
    is_calm: bool = False
    finished_line: int = 0


@dataclasses.dataclass(slots=True)
class _Folded:
    finding: Finding
    count: int
    last_seq: int
    ranks: dict[int, None]
    sources: dict[str, None]
    occurrences: list[Occurrence]
    open: set[str]  # sources in which no training was seen after it
    last_line: int
    last_source: str
    num_handled: int = 0
    finished_line: int = 0
    is_calm: bool = False

    def freeze(self, lines: Mapping[str, int]) -> Finding:
        return dataclasses.replace(
            self.finding,
            count=self.count,
            last_seq=self.last_seq,
            ranks=tuple(sorted(self.ranks)),
            sources=tuple(self.sources),
            occurrences=tuple(self.occurrences),
            is_handled=self.num_handled >= self.count,
            finished_line=self.finished_line,
            is_calm=self.is_calm,
            moved_on=not self.open,
            last_line=self.last_line,
            lines_after=max(0, lines.get(self.last_source, 0) - self.last_line),
        )


class Fold:
    """Findings by what they are about. The earliest line of each is kept, the others are counted."""

    def __init__(self) -> None:
        self._folded: dict[tuple[str, ...], _Folded] = {}
        self._lines: dict[str, int] = {}
        self._seq = 0
        self.num_dropped = 0

    def add(self, signature: Signature, text: bytes, seen: Seen) -> tuple[str, ...] | None:
        """Its key, for `move_on` and `handle`; None: there is no room for one more."""
        self._seq += 1
        about = subject_of(text)
        key = (signature.code, about and f"{seen.source}|{about}", fingerprint(text))
        happened = Occurrence(seen.at, _first(_PID, text), _first(_SPOT, text))
        known = self._folded.get(key)
        if known is not None:
            self._repeat(known, happened, seen)
            return key
        if len(self._folded) >= MAX_FINDINGS:
            self.num_dropped += 1
            return None
        self._folded[key] = _Folded(
            _finding(signature, text, about, seen, self._seq),
            1,
            self._seq,
            {} if seen.rank is None else {seen.rank: None},
            {seen.source: None},
            [happened],
            open={seen.source},
            last_line=seen.line,
            last_source=seen.source,
            finished_line=seen.finished_line,
            is_calm=seen.is_calm,
        )
        return key

    def _repeat(self, known: _Folded, happened: Occurrence, seen: Seen) -> None:
        known.count += 1
        known.last_seq = self._seq
        known.last_line, known.last_source = seen.line, seen.source
        known.finished_line = min(known.finished_line, seen.finished_line)
        known.is_calm = known.is_calm and seen.is_calm
        if len(known.open) < MAX_SEEN:
            known.open.add(seen.source)
        if seen.rank is not None and len(known.ranks) < MAX_SEEN:
            known.ranks[seen.rank] = None
        if len(known.sources) < MAX_SEEN:
            known.sources[seen.source] = None
        if len(known.occurrences) < MAX_SEEN:
            known.occurrences.append(happened)
        first = known.finding
        if happened.at is not None and first.at is not None and happened.at < first.at:
            known.finding = dataclasses.replace(first, at=happened.at, source=seen.source, line=seen.line)

    def move_on(self, key: tuple[str, ...], source: str) -> None:
        """Training continued after it in this source."""
        if key in self._folded:
            self._folded[key].open.discard(source)

    def handle(self, key: tuple[str, ...]) -> None:
        """The program caught this one, and what it did then failed by itself."""
        if key in self._folded:
            self._folded[key].num_handled += 1

    def findings(self) -> list[Finding]:
        return [folded.freeze(self._lines) for folded in self._folded.values()]

    def ended(self, source: str, lines: int) -> None:
        """How many lines this source had."""
        if len(self._lines) < MAX_FINDINGS:
            self._lines[source] = lines


def _finding(signature: Signature, text: bytes, about: str, seen: Seen, seq: int) -> Finding:
    return Finding(
        code=signature.code,
        klass=signature.klass,
        component=signature.component,
        title=signature.title,
        blame=signature.blame,
        severity=signature.severity,
        role=signature.role,
        action=signature.action,
        specificity=signature.specificity,
        family=signature.family,
        after=signature.after,
        recovers=signature.recovers,
        text=shown(text),
        source=seen.source,
        line=seen.line,
        seq=seq,
        last_seq=seq,
        at=seen.at,
        subject=about,
        place=seen.place,
        from_kernel=seen.from_kernel,
        is_exception=seen.is_exception,
        is_chained=seen.is_chained,
    )


def subject_of(text: bytes) -> str:
    match = _SUBJECT.search(text[:MAX_TEXT_BYTES])
    if match is None:
        return ""
    value = next(group for group in match.groups() if group is not None)
    return value.decode("ascii", "replace").lower()


def fingerprint(text: bytes) -> str:
    """The text without what changes from rank to rank: numbers and addresses."""
    return _CHANGING.sub(b"#", text[:512]).decode("latin-1")


def shown(text: bytes) -> str:
    """For people and JSON: no control characters, cut at a stated length."""
    cut = text[:MAX_TEXT_BYTES].decode("utf-8", "replace")
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" if char != "\t" else " " for char in cut)


def _first(pattern: "re.Pattern[bytes]", text: bytes) -> str:
    match = pattern.search(text[:MAX_TEXT_BYTES])
    if match is None:
        return ""
    return (match[1] if match.re.groups else match[0]).decode("latin-1")
