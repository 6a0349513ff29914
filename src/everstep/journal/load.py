"""A journal file to a `RunView`: reading and folding in one, both to read it once and to follow it."""

from pathlib import Path

from everstep.journal.beside.live import load_live
from everstep.journal.fold import Fold, fold
from everstep.journal.reader import Cursor, read_journal, require_header
from everstep.journal.runs import LIVE_NAME
from everstep.journal.view import RunView


def load_run(journal: Path) -> RunView:
    """Raises JournalError."""
    reading = read_journal(journal, thin=True)
    live = load_live(journal.with_name(LIVE_NAME))
    return fold(reading.header, reading.entries, reading.torn_bytes, live.events)


class Growing:
    """The view of a run that is under way, as its journal grows. It is one value, which changes."""

    def __init__(self, journal: Path) -> None:
        self._cursor = Cursor(journal)
        self._fold: Fold | None = None

    @property
    def view(self) -> RunView | None:
        """The view as of the last look; None: nothing was there."""
        return None if self._fold is None else self._fold.view

    def look(self) -> RunView | None:
        """Up to now. Raises JournalError."""
        entries = self._cursor.read(thin=self._fold is None)
        if self._fold is None:
            if self._cursor.header is None:
                return None
            self._fold = Fold(self._cursor.header)
        for entry in entries:
            self._fold.add(entry)
        return self._fold.view

    def look_live(self) -> RunView:
        """With progress that is not on record (yet). Raises JournalError, also where there is no run yet."""
        self.look()
        if self._fold is None:
            self._fold = Fold(require_header(self._cursor))
        for event in load_live(self._cursor.path.with_name(LIVE_NAME)).events:
            self._fold.add_live(event)
        return self._fold.view
