"""Which node has which ranks, by the run's journal: the controller records a start before any agent hears of it.

So whatever a rank wrote arrives after the record, and one look at what is new is enough; it is taken only for a
generation that is not known yet. Lines without a start are not decoded: the launcher has no time for a whole journal.
"""

import os
from pathlib import Path

from everstep.errors import JournalError
from everstep.journal.format import LineError, decode_record
from everstep.model.actions import StartWorkers
from everstep.model.record import Record

MAX_KEPT = 1000
"""Generations: files of an older one do not come any more."""

_MARK = b'"StartWorkers"'
_PIECE_BYTES = 1 << 20


class Places:
    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._offset = 0  # of the first line that was not read
        self._starts: dict[int, list[StartWorkers]] = {}

    def node_of(self, generation: int, rank: int) -> str | None:
        """The node that was to start this rank; None: no node was."""
        found = self._find(generation, rank)
        if found is None:
            self._read()
            found = self._find(generation, rank)
        return found

    def _find(self, generation: int, rank: int) -> str | None:
        for start in reversed(self._starts.get(generation, ())):
            if start.first_rank <= rank < start.first_rank + start.num_ranks:
                return start.node
        return None

    def _read(self) -> None:
        """Read new lines of the journal. Raises nothing: without a journal no host is believed, and other code reports
        that it cannot be read."""
        try:
            with self._journal.open("rb") as file:
                # The writer truncates a failed append, possibly after we saw it.
                self._offset = min(self._offset, os.fstat(file.fileno()).st_size)
                file.seek(self._offset)
                rest = b""
                while data := file.read(_PIECE_BYTES):
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        self._offset += len(line) + 1
                        if _MARK in line:
                            self._take(line)
        except OSError:
            return
        while len(self._starts) > MAX_KEPT:
            del self._starts[min(self._starts)]

    def _take(self, line: bytes) -> None:
        try:
            entry = decode_record(line)
        except (LineError, JournalError):
            return
        for action in entry.actions if isinstance(entry, Record) else ():
            if isinstance(action, StartWorkers):
                self._starts.setdefault(action.generation, []).append(action)
