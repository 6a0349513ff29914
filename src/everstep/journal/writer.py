"""The only writer of a run's truth: append a record, know that it is on disk, repair what a crash left.

Called by the controller, which appends before it acts. One process at a time (`lock`). It decides nothing and
keeps no records in memory.
"""

import errno
import os
from pathlib import Path
from types import TracebackType

from everstep.errors import JournalError
from everstep.journal.beside import lock
from everstep.journal.format import Entry, UnknownRecord, encode_header, encode_record
from everstep.journal.reader import Cursor, read_tail, require_header
from everstep.linux.files import write_whole
from everstep.model.record import Header, Record

LOCK_NAME = "journal.lock"


class Journal:
    """An open journal. Use `create` or `open`; close it, or use it as a context manager."""

    def __init__(self, path: Path, header: Header, *, fd: int, lock_fd: int, size: int, seq: int) -> None:
        self.path = path
        self.header = header
        self.seq = seq  # of the last record; 0 when there is none
        self.unknown: tuple[UnknownRecord, ...] = ()  # records of a newer everstep, found on opening
        self._fd = fd
        self._lock_fd = lock_fd
        self._size = size

    @classmethod
    def create(cls, path: Path, header: Header) -> "Journal":
        """Start a journal; it appears with its header or not at all. Raises JournalError, RunLockedError."""
        lock_fd = lock.acquire(path.with_name(LOCK_NAME))
        try:
            if path.exists():
                raise JournalError(f"{path} exists already: a run is there. Nothing was changed.")
            line = encode_header(header)
            _write_new(path, line)
            fd = _open(path)
        except BaseException:
            os.close(lock_fd)
            raise
        return cls(path, header, fd=fd, lock_fd=lock_fd, size=len(line), seq=0)

    @classmethod
    def open(cls, path: Path) -> tuple["Journal", list[Record], int]:
        """Open for appending, after repair: the journal, its records, and how many torn bytes were cut off.

        The cut bytes stay beside it in `journal.torn-<n>`. Records whose event type is unknown here are in
        `Journal.unknown`. Raises JournalError, RunLockedError.
        """
        lock_fd = lock.acquire(path.with_name(LOCK_NAME))
        fd = -1
        try:
            cursor = Cursor(path)
            entries = cursor.read()
            tail = read_tail(cursor)
            header = require_header(cursor)
            fd = _open(path)
            torn_bytes = _repair(fd, cursor, tail, entries)
            journal = cls(path, header, fd=fd, lock_fd=lock_fd, size=os.fstat(fd).st_size, seq=cursor.seq)
        except BaseException:
            os.close(lock_fd)
            if fd >= 0:
                os.close(fd)
            raise
        journal.unknown = tuple(e for e in entries if isinstance(e, UnknownRecord))
        return journal, [e for e in entries if isinstance(e, Record)], torn_bytes

    def append(self, *records: Record) -> None:
        """Put records on disk, all or none. Raises JournalError with the file as it was before.

        ValueError for a record that breaks the sequence or could not be read again; nothing was written then.
        """
        for seq, record in enumerate(records, self.seq + 1):
            if record.seq != seq:
                raise ValueError(f"record {record.seq} where {seq} is next")
        data = b"".join(encode_record(record) for record in records)
        try:
            if os.fstat(self._fd).st_size != self._size:
                os.ftruncate(self._fd, self._size)  # rest of a failed append that could not be undone then
            _write_all(self._fd, data, self._size)
            os.fdatasync(self._fd)
        except OSError as error:
            self._undo()
            raise _write_error(self.path, error) from error
        self._size += len(data)
        self.seq += len(records)

    @property
    def size(self) -> int:
        """Bytes that are on disk."""
        return self._size

    def close(self) -> None:
        """Close the file and unlock the run. Safe to call twice."""
        for fd in (self._fd, self._lock_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._lock_fd = -1

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _undo(self) -> None:
        try:
            os.ftruncate(self._fd, self._size)
            os.fdatasync(self._fd)
        except OSError:
            pass  # the next append, or the repair on the next opening, cuts it off


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _write_error(path, error) from error


def _write_new(path: Path, line: bytes) -> None:
    try:
        write_whole(path, line, mode=0o600, is_synced=True)
    except OSError as error:
        raise _write_error(path, error) from error


def _repair(fd: int, cursor: Cursor, tail: bytes, entries: list[Entry]) -> int:
    """Make the file end with a complete line; returns how many bytes were cut off."""
    if not tail:
        return 0
    end = cursor.offset
    last = cursor.take_tail(tail)
    try:
        if last is not None:
            entries.append(last)
            _write_all(fd, b"\n", cursor.offset)
            cursor.offset += 1
            os.fdatasync(fd)
            return 0
        _keep_torn(cursor.path, tail)
        os.ftruncate(fd, end)
        os.fdatasync(fd)
    except OSError as error:
        raise _write_error(cursor.path, error) from error
    return len(tail)


def _keep_torn(path: Path, tail: bytes) -> None:
    number = 1
    while (kept := path.with_name(f"journal.torn-{number}")).exists():
        number += 1
    try:
        kept.write_bytes(tail)
    except OSError:
        kept.unlink(missing_ok=True)  # for the curious only: a full disk must not prevent the repair


def _write_all(fd: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written


def _write_error(path: Path, error: OSError) -> JournalError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return JournalError(
            f"{path}: the disk is full ({error.strerror}). The journal is whole up to the record before. "
            "Free some space."
        )
    return JournalError(f"cannot write {path}: {error.strerror}")
