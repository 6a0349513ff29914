"""A journal file to a `RunView`: reading and folding in one call, for the reading verbs."""

from pathlib import Path

from everstep.journal.beside.live import load_live
from everstep.journal.fold import fold
from everstep.journal.reader import read_journal
from everstep.journal.runs import LIVE_NAME
from everstep.journal.view import RunView


def load_run(journal: Path) -> RunView:
    """Raises JournalError."""
    reading = read_journal(journal, thin=True)
    live = load_live(journal.with_name(LIVE_NAME))
    return fold(reading.header, reading.entries, reading.torn_bytes, live.events)
