"""The review queue: lines that only a family caught, folded by shape, for a person to read and write signatures from.

Nothing is ever decided on them. `fold_unknown` is pure; `ReviewQueue` keeps the queue in one small file that is
replaced whole. Called by agents at the end of a generation and by `everstep kb`.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from everstep.errors import EverstepError
from everstep.knowledge.findings import Finding, fingerprint
from everstep.linux.files import write_whole

MAX_ENTRIES = 2000
"""Beyond that the least seen are dropped: a queue that long is not read."""


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """One shape of line that no signature knows."""

    id: str
    family: str
    text: str  # the first line of this shape
    source: str
    line: int
    count: int
    first_at: float | None = None
    last_at: float | None = None


def fold_unknown(known: Iterable[Unknown], findings: Sequence[Finding]) -> list[Unknown]:
    """The queue with these findings in it, most seen first."""
    by_id = {entry.id: entry for entry in known}
    for finding in findings:
        if not finding.family:
            continue
        name = _id(finding)
        old = by_id.get(name)
        seen = (finding.at, old.first_at, old.last_at) if old else (finding.at,)
        times = [at for at in seen if at is not None]
        by_id[name] = Unknown(
            id=name,
            family=finding.family,
            text=old.text if old else finding.text,
            source=old.source if old else finding.source,
            line=old.line if old else finding.line,
            count=(old.count if old else 0) + finding.count,
            first_at=min(times, default=None),
            last_at=max(times, default=None),
        )
    return sorted(by_id.values(), key=lambda entry: (-entry.count, entry.family, entry.id))[:MAX_ENTRIES]


def _id(finding: Finding) -> str:
    shape = f"{finding.family}\n{fingerprint(finding.text.encode())}"
    return hashlib.sha256(shape.encode()).hexdigest()[:8]


class ReviewQueue:
    """The queue in a file. Two writers at once lose counts, never the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[Unknown]:
        """Entries that can be read; a damaged line is left out."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise EverstepError(f"review queue {self._path} cannot be read: {error.strerror}") from error
        entries = []
        for line in data.split(b"\n"):
            try:
                entries.append(msgspec.json.decode(line, type=Unknown))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
        return entries

    def add(self, findings: Sequence[Finding]) -> int:
        """How many shapes are new."""
        before = self.read()
        after = fold_unknown(before, findings)
        self._write(after)
        return len({e.id for e in after} - {e.id for e in before})

    def drop(self, entry_id: str) -> bool:
        """Takes an entry out, once it was read. False when there is none."""
        entries = self.read()
        kept = [entry for entry in entries if entry.id != entry_id]
        if len(kept) == len(entries):
            return False
        self._write(kept)
        return True

    def _write(self, entries: Sequence[Unknown]) -> None:
        body = b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, body)
        except OSError as error:
            raise EverstepError(f"review queue {self._path} cannot be written: {error.strerror}") from error
