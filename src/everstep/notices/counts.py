"""Delivery results of a run's messages, by receiver: `notices.json` of the notifier, `otlp.json` of the exporter to
OpenTelemetry. Read for the counters."""

import contextlib
from pathlib import Path

import msgspec

from everstep.linux.files import write_whole
from everstep.linux.regular import regular

NAME = "notices.json"
OTLP = "otlp.json"
_MAX_BYTES = 1 << 20

Counts = dict[str, dict[str, int]]
"""Receiver -> outcome (sent, edited, failed, dropped) -> number."""


def load_counts(run_dir: Path) -> Counts:
    """Load the counts of notifier and exporter together. A file that is missing or cannot be read adds nothing."""
    return _load(run_dir / NAME) | _load(run_dir / OTLP)


def _load(path: Path) -> Counts:
    try:
        with regular(path) as file:
            return msgspec.json.decode(file.read(_MAX_BYTES), type=Counts)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


def save_counts(run_dir: Path, counts: Counts, name: str = NAME) -> None:
    with contextlib.suppress(OSError):
        write_whole(run_dir / name, msgspec.json.encode(counts), mode=0o600)
