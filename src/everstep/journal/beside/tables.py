"""A table that the controller writes beside the journal again and again, and others read: whole, or not at all."""

from pathlib import Path
from typing import TypeVar

import msgspec

from everstep.errors import JournalError
from everstep.linux.regular import read_regular

_T = TypeVar("_T")


def read_table(path: Path, kind: type[_T], max_bytes: int) -> _T | None:
    """Read a table; None: not written yet. Raises JournalError."""
    try:
        return msgspec.json.decode(read_regular(path, max_bytes), type=kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise JournalError(
            f"{path} is damaged: {str(error)[:200]}. The next round of the run writes it again."
        ) from error
