"""Fields of untrusted dumps as checked values. Pure; used by the readers of flight records."""

import re

INT64 = 1 << 63


def integer(value: object) -> int | None:
    """A 64-bit integer, also where it is written as text; None for everything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if -INT64 <= value < INT64 else None
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    return None
