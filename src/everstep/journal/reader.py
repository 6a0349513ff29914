"""Reading a journal without a lock, while it may be growing.

`Cursor.read` gives the complete records that were added since the last call: `everstep run` narrates from it.
`read_journal` gives everything there is, for the folds. A last line that is not complete is ignored, as a
live run may be in the middle of writing it and a dead one left it torn; damage anywhere else is a
JournalError with the line number.

Nothing here writes: repair belongs to `writer`.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from everstep.errors import JournalError
from everstep.journal.format import Entry, LineError, decode_header, decode_record
from everstep.journal.thin import superseded_lines
from everstep.linux.regular import MOST_BYTES, regular
from everstep.model.record import Header


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A whole journal. `torn_bytes` were left out at its end."""

    header: Header
    entries: list[Entry]
    torn_bytes: int


@dataclass
class Cursor:
    """A position in a journal file. `offset` is where the next unread line begins."""

    path: Path
    header: Header | None = None
    offset: int = 0
    seq: int = 0  # of the last entry read
    num_lines: int = 0
    _last_line_at: int = field(default=0, repr=False)

    def read(self, *, thin: bool = False) -> list[Entry]:
        """Complete entries added since the last call; [] before the file exists. Raises JournalError.

        `thin` leaves out periodic accounts that a later one replaces.
        """
        try:
            with regular(self.path) as file:
                size = os.fstat(file.fileno()).st_size
                self._follow_truncation(size)
                if size - self.offset > MOST_BYTES:
                    raise JournalError(f"{self.path} has {size:,} bytes: more than this machine can read at once")
                file.seek(self.offset)
                data = file.read()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise JournalError(f"cannot read {self.path}: {error.strerror}") from error
        return list(self._take_lines(data.split(b"\n"), thin=thin))

    def take_tail(self, tail: bytes) -> Entry | None:
        """The entry in a last line without its newline, if it is whole. Advances past it."""
        try:
            return self._take(tail, length=len(tail))
        except LineError:
            return None

    def _follow_truncation(self, size: int) -> None:
        # A failed append is cut off again by the writer, possibly after we saw it.
        if size < self.offset and self.num_lines > 1:
            self.offset, self.seq, self.num_lines = self._last_line_at, self.seq - 1, self.num_lines - 1

    def _take_lines(self, lines: list[bytes], *, thin: bool) -> Iterator[Entry]:
        tail = lines.pop()
        superseded = superseded_lines(lines) if thin else {}
        for index, line in enumerate(lines):
            if index in superseded:
                self._check_sequence(superseded[index])
                self._advance(len(line) + 1)
                continue
            try:
                entry = self._take(line, length=len(line) + 1)
            except LineError as error:
                if error.torn and index + 1 == len(lines) and not tail and self.header is not None:
                    return  # only the last write can be torn, even if its newline reached the disk
                raise self._damage(error) from error
            if entry is not None:
                yield entry

    def _take(self, line: bytes, *, length: int) -> Entry | None:
        try:
            if self.header is None:
                self.header = decode_header(line)
                entry = None
            else:
                entry = decode_record(line)
        except JournalError as error:
            raise JournalError(f"{self._where}: {error}") from error
        if entry is not None:
            self._check_sequence(entry.seq)
        self._advance(length)
        return entry

    def _advance(self, length: int) -> None:
        self._last_line_at = self.offset
        self.offset += length
        self.num_lines += 1

    def _check_sequence(self, seq: int) -> None:
        if seq != self.seq + 1:
            raise JournalError(
                f"{self._where}: record {seq} follows record {self.seq}: records are missing or doubled. "
                "The file was changed by something else than everstep; the lines before are good."
            )
        self.seq = seq

    @property
    def _where(self) -> str:
        return f"{self.path}, line {self.num_lines + 1}"

    def _damage(self, error: LineError) -> JournalError:
        return JournalError(
            f"{self.path} is damaged at line {self.num_lines + 1}, which is not the last: {error.why}. "
            f"The {self.num_lines} lines before it are good. Nothing was changed."
        )


def read_journal(path: Path, *, thin: bool = False) -> Reading:
    """Everything in the journal, also of a run that is gone or was torn. Raises JournalError.

    `thin`: without the periodic accounts that later ones replace, which is most of a long journal.
    """
    cursor = Cursor(path)
    entries = cursor.read(thin=thin)
    tail = read_tail(cursor)
    header = require_header(cursor)
    if tail:
        last = cursor.take_tail(tail)
        if last is not None:
            entries.append(last)
            tail = b""
    return Reading(header=header, entries=entries, torn_bytes=len(tail))


def read_tail(cursor: Cursor) -> bytes:
    """The bytes behind the last complete line. Raises JournalError when there is no journal at all."""
    try:
        with regular(cursor.path) as file:
            file.seek(cursor.offset)
            return file.read()
    except OSError as error:
        raise JournalError(f"cannot read {cursor.path}: {error.strerror}") from error


def require_header(cursor: Cursor) -> Header:
    if cursor.header is None:
        raise JournalError(f"{cursor.path} has no complete header line: it is not an everstep journal, or was cut")
    return cursor.header
