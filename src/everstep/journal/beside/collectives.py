"""The table of a run's collectives beside its journal: `collectives.json`. The controller writes it after each round of
the agents, the reading verbs read it. It is no part of the truth: without it, nothing but the table is missing."""

from pathlib import Path

import msgspec

from everstep.analyzer.collective.figures import VERSION, Table
from everstep.errors import JournalError
from everstep.journal.beside.tables import read_table
from everstep.linux.files import write_whole

NAME = "collectives.json"
MAX_BYTES = 64 << 20


def save(run_dir: Path, table: Table) -> None:
    """Raises OSError."""
    write_whole(run_dir / NAME, msgspec.json.encode(table), mode=0o600)


def load(run_dir: Path) -> Table | None:
    """The table of the run; None: not written yet. Raises JournalError."""
    path = run_dir / NAME
    table = read_table(path, Table, MAX_BYTES)
    if table is None:
        return None
    if table.version != VERSION:
        raise JournalError(f"{path} is of version {table.version}; this Everstep reads {VERSION}")
    return table
