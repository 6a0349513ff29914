"""The table of a run's collectives beside its journal: `collectives.json`. The controller writes it after each round of
the agents, the reading verbs read it. It is no part of the truth: without it, nothing but the table is missing."""

from pathlib import Path

import msgspec

from everstep.analyzer.collective.figures import VERSION, Table
from everstep.errors import JournalError
from everstep.linux.files import write_whole
from everstep.linux.regular import read_regular

NAME = "collectives.json"
MAX_BYTES = 64 << 20


def save(run_dir: Path, table: Table) -> None:
    """Raises OSError."""
    write_whole(run_dir / NAME, msgspec.json.encode(table), mode=0o600)


def load(run_dir: Path) -> Table | None:
    """None: nobody has written one. Raises JournalError."""
    path = run_dir / NAME
    try:
        table = msgspec.json.decode(read_regular(path, MAX_BYTES), type=Table)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise JournalError(
            f"{path} is damaged: {str(error)[:200]}. The next round of the run writes it again."
        ) from error
    if table.version != VERSION:
        raise JournalError(f"{path} is of version {table.version}; this Everstep reads {VERSION}")
    return table
