"""What became of the notices of a run, by receiver: `notices.json`, written by the notifier, read by whoever counts."""

import contextlib
from pathlib import Path

import msgspec

from everstep.linux.files import write_whole

NAME = "notices.json"
_MAX_BYTES = 1 << 20

Counts = dict[str, dict[str, int]]
"""Receiver -> outcome (sent, edited, failed, dropped) -> number."""


def load_counts(run_dir: Path) -> Counts:
    """Nothing when there is none, or when it cannot be read."""
    try:
        with (run_dir / NAME).open("rb") as file:
            return msgspec.json.decode(file.read(_MAX_BYTES), type=Counts)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}


def save_counts(run_dir: Path, counts: Counts) -> None:
    with contextlib.suppress(OSError):
        write_whole(run_dir / NAME, msgspec.json.encode(counts), mode=0o600)
