"""`progress.json`: the newest progress of a live run that is not in the journal (yet). Lost with no harm.

Written by the controller, whole or not at all; folded by the reading verbs after the journal.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from everstep.linux.files import write_whole
from everstep.linux.regular import MOST_BYTES, read_regular
from everstep.model.events import ProgressReported


class LiveProgress(msgspec.Struct, frozen=True, kw_only=True):
    events: tuple[ProgressReported, ...] = ()


def encode_live(events: Sequence[ProgressReported]) -> bytes:
    """Part of the file; a hundred thousand ranks take long, so it is made of several."""
    return b",".join(msgspec.json.encode(event) for event in events)


def save_live(path: Path, parts: Sequence[bytes]) -> None:
    with contextlib.suppress(OSError):
        write_whole(path, b'{"events":[' + b",".join(part for part in parts if part) + b"]}", mode=0o600)


def load_live(path: Path) -> LiveProgress:
    """Nothing when there is none, or when it cannot be read: it only adds to the journal."""
    try:
        return msgspec.json.decode(read_regular(path, MOST_BYTES), type=LiveProgress)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return LiveProgress()
