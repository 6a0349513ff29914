"""Where a run continues since another host has its controller: `continued`, a link in the directory where it was begun.

Only where hosts share that directory. The successor makes it, and verbs that name the run follow it; the former
controller, should it wake, writes into its own journal and creates no such link.
"""

import contextlib
import os
from pathlib import Path

NAME = "continued"


def point(begun: Path, path: Path) -> None:
    """Raises OSError."""
    draft = begun / f".{NAME}.{os.getpid()}"
    draft.unlink(missing_ok=True)
    draft.symlink_to(path)
    draft.replace(begun / NAME)


def forget(begun: Path) -> None:
    """The run is begun here again."""
    with contextlib.suppress(OSError):
        (begun / NAME).unlink()


def is_elsewhere(begun: Path) -> bool:
    """Whether another host has taken over the run."""
    return os.path.lexists(begun / NAME)


def followed(begun: Path, journal_name: str) -> Path:
    """Where the run's newest journal is; `begun` itself if no other host has taken over. A link to a directory of
    another user is not followed."""
    try:
        path = (begun / NAME).resolve(strict=True)
        is_ours = path.stat().st_uid == begun.stat().st_uid == (begun / NAME).lstat().st_uid
        return path if is_ours and (path / journal_name).is_file() else begun
    except (OSError, RuntimeError):
        return begun
