"""`progress.json`: the newest progress of a live run that is not in the journal (yet). Lost with no harm.

Written by the controller, whole or not at all; folded by the reading verbs after the journal.
"""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from everstep.model.events import ProgressReported


class LiveProgress(msgspec.Struct, frozen=True, kw_only=True):
    events: tuple[ProgressReported, ...] = ()


def encode_live(events: Sequence[ProgressReported]) -> bytes:
    """Part of the file; a hundred thousand ranks take long, so it is made of several."""
    return b",".join(msgspec.json.encode(event) for event in events)


def save_live(path: Path, parts: Sequence[bytes]) -> None:
    draft = path.with_name(path.name + ".new")
    with contextlib.suppress(OSError):
        with open(draft, "wb", opener=_private) as file:
            file.write(b'{"events":[' + b",".join(part for part in parts if part) + b"]}")
        draft.replace(path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def load_live(path: Path) -> LiveProgress:
    """Nothing when there is none, or when it cannot be read: it only adds to the journal."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=LiveProgress)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return LiveProgress()
