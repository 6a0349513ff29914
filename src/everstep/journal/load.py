"""A journal file to a `RunView`: reading and folding in one call, for the reading verbs."""

from pathlib import Path

from everstep.journal.fold import fold
from everstep.journal.reader import read_journal
from everstep.journal.view import RunView


def load_run(journal: Path) -> RunView:
    """Raises JournalError."""
    reading = read_journal(journal, thin=True)
    return fold(reading.header, reading.entries, reading.torn_bytes)
