"""The file in which a rank, or torch for it, leaves an error report (TORCHELASTIC_ERROR_FILE)."""

from pathlib import Path

from everstep.linux.regular import read_regular

SYSTEM_EXIT = "SystemExit"
"""Kind of the report of a program that ended itself, with an exit code other than 0."""

_MAX_BYTES = 4 << 20


def read_bytes(path: Path) -> bytes:
    """The whole error report. Raises OSError when it is too large for one, or not a regular file."""
    return read_regular(path, _MAX_BYTES)
