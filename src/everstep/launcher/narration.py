"""everstep's own lines on the terminal: what happened, told from the journal while it grows, and the summary.

It follows the journal as any reader does and adds nothing of its own. Used by `launcher.terminal`, in its thread.
"""

from collections.abc import Callable
from pathlib import Path

from everstep.errors import JournalError
from everstep.journal.format import Entry
from everstep.journal.reader import Cursor
from everstep.launcher.supervise import End


class Narration:
    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._cursor = Cursor(run_dir / "journal.jsonl")
        self._tell: Callable[[Entry], list[str]] = lambda entry: []
        self._complaint = ""

    def skip_existing(self) -> None:
        """Earlier attempts were told when they happened."""
        self._read()

    def lines(self) -> list[str]:
        return [line for entry in self._read() for line in self._tell(entry)]

    def summary(self, end: End) -> list[str]:
        return [f"everstep: {end.outcome}: {end.why}"]

    def _read(self) -> list[Entry]:
        try:
            return self._cursor.read()
        except JournalError as error:
            self._complaint = str(error)
            return []
