"""Pages of a journal: the records after a given one, without reading the file from its beginning.

Keeps in memory where every 256th record begins, so a page costs itself and at most as many lines before it. Called by
the controller's `/api/journal`, in a thread, one at a time. It only reads; the writer may be appending.
"""

from pathlib import Path
from typing import BinaryIO

from everstep.errors import JournalError
from everstep.journal.format import Entry, LineError, decode_record

MOST_BYTES = 1 << 20
"""Limit of one page, as it lies in the file. A longer record is a page of its own."""

STRIDE = 256


class Pages:
    def __init__(self, path: Path, *, most: int = MOST_BYTES, stride: int = STRIDE) -> None:
        self._path = path
        self._most = most
        self._stride = stride
        self._begins: list[int] = []  # where records 1, 1 + stride, ... begin
        self._num_lines = 0  # looked through, the header with them
        self._at = 0  # where the next line begins

    def read(self, after: int, last: int) -> list[Entry]:
        """Records from `after` + 1 on, none beyond `last`, which is on disk. Raises JournalError."""
        first = max(after, 0) + 1
        if first > last:
            return []
        try:
            with self._path.open("rb") as file:
                self._learn(file, first)
                return self._page(file, first, last)
        except OSError as error:
            raise JournalError(f"cannot read {self._path}: {error.strerror}") from error

    def _learn(self, file: BinaryIO, record: int) -> None:
        """Look through the file up to the last known beginning before `record`. Never beyond a record that is on disk:
        what comes after it may still be cut off."""
        file.seek(self._at)
        while len(self._begins) <= (record - 1) // self._stride:
            self._at += len(self._line(file, self._num_lines))
            if self._num_lines % self._stride == 0:
                self._begins.append(self._at)
            self._num_lines += 1

    def _page(self, file: BinaryIO, first: int, last: int) -> list[Entry]:
        found: list[Entry] = []
        skipped, num_bytes = (first - 1) % self._stride, 0
        file.seek(self._begins[(first - 1) // self._stride])
        for record in range(first - skipped, last + 1):
            line = self._line(file, record)
            if record < first:
                continue
            num_bytes += len(line)
            if found and num_bytes > self._most:
                break
            try:
                found.append(decode_record(line))
            except LineError as error:
                raise JournalError(f"{self._path}, record {record}: {error.why}") from error
        return found

    def _line(self, file: BinaryIO, record: int) -> bytes:
        line = file.readline()
        if not line.endswith(b"\n"):
            raise JournalError(f"{self._path}: record {record} is cut off")
        return line
