"""`progress.json`: the newest progress of a live run that is not in the journal (yet). Lost with no harm.

Written by the controller, whole or not at all; folded by the reading verbs after the journal.
"""

import contextlib
from pathlib import Path

import msgspec

from everstep.model.events import ProgressReported


class LiveProgress(msgspec.Struct, frozen=True, kw_only=True):
    events: tuple[ProgressReported, ...] = ()


def save_live(path: Path, live: LiveProgress) -> None:
    draft = path.with_name(path.name + ".new")
    with contextlib.suppress(OSError):
        draft.write_bytes(msgspec.json.encode(live))
        draft.replace(path)


def load_live(path: Path) -> LiveProgress:
    """Nothing when there is none, or when it cannot be read: it only adds to the journal."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=LiveProgress)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return LiveProgress()
