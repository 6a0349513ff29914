"""everstep's own lines on the terminal: what happened, from the journal while it grows, and the summary.

It follows the journal as any reader does; the words are `report`'s. Used by `launcher.output.terminal`, in its thread.
"""

import os
import sys
import time
from pathlib import Path

from everstep.errors import JournalError
from everstep.goodput.figures import goodput_of
from everstep.journal.beside.live import load_live
from everstep.journal.format import Entry
from everstep.journal.history import history_of
from everstep.journal.reader import Cursor
from everstep.journal.runs import LIVE_NAME
from everstep.journal.view import RunView
from everstep.launcher.supervise import End
from everstep.report.now.live import live_text
from everstep.report.now.narrate import Narrator
from everstep.report.parts.ansi import style_for
from everstep.report.parts.units import duration, percent, plural


class Narration:
    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "journal.jsonl"
        self._cursor = Cursor(self._path)
        self._size = -1
        self._narrator: Narrator | None = None
        self._is_lost = False

    def skip_existing(self) -> None:
        """Skip earlier attempts: they were reported when they happened."""
        self.lines()

    def lines(self) -> list[str]:
        """About what has come since the last call."""
        try:
            return [line for entry in self._read() for line in self._tell(entry)]
        except JournalError as error:
            if self._is_lost:
                return []
            self._is_lost = True  # once: the run itself does not depend on this reader
            return [f"everstep: cannot follow the journal: {error}"]

    @property
    def view(self) -> RunView | None:
        """The view of the journal; None before its first line."""
        return self._narrator.view if self._narrator is not None else None

    def live(self) -> str:
        """How far the job is now, for the live line."""
        view = self.view
        if view is None:
            return ""
        return live_text(view, load_live(self._path.with_name(LIVE_NAME)).events, time.time())

    def summary(self, end: End) -> list[str]:
        """The last lines. The outcome was printed when it was decided, unless the controller could not."""
        view = self.view
        lines = [] if view is not None and view.is_over else [f"everstep: {end.outcome}: {end.why}"]
        if view is not None and view.generations:
            lines += [_account(view), f"  everstep status {view.run}   everstep goodput {view.run}"]
        return lines

    def _read(self) -> list[Entry]:
        """Looks at the size first: mostly nothing has come."""
        try:
            size = os.stat(self._path).st_size  # noqa: PTH116  (ten times a second)
        except OSError:
            return []
        if size == self._size:
            return []
        self._size = size
        return self._cursor.read()

    def _tell(self, entry: Entry) -> list[str]:
        if self._narrator is None:
            if self._cursor.header is None:
                return []
            self._narrator = Narrator(self._cursor.header, style_for(sys.stderr))
        return self._narrator.tell(entry)


def _account(view: RunView) -> str:
    """Summarize what the run cost, in one line."""
    goodput = goodput_of(history_of(view, time.time()))
    recovered = sum(incident.outcome == "recovered" for incident in view.incidents.values())
    incidents = plural(len(view.incidents), "incident")
    of_them = f" ({recovered} recovered)" if view.incidents else ""
    return f"  {duration(goodput.wall_s)}, {incidents}{of_them}, goodput {percent(goodput.ettr)}"
