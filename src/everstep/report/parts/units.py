"""Numbers and times as people read them: three digits, UTC, "2m 55s", "48,212", ranks folded to "0-7,16"."""

import math
from datetime import UTC, datetime

NOT_MEASURED = "—"


def duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return NOT_MEASURED
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 0.0005:
        return "0s"
    if seconds < 0.0995:
        return f"{1000 * seconds:.0f}ms"
    if seconds < 9.995:
        return f"{seconds:.2f}s"
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def count(number: int | None) -> str:
    return NOT_MEASURED if number is None else f"{number:,}"


def size(num_bytes: int | None) -> str:
    """In powers of 1024, three digits: "9.31 GiB"."""
    if num_bytes is None:
        return NOT_MEASURED
    value, unit = float(num_bytes), "B"
    for following in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 999.5:
            break
        value, unit = value / 1024, following
    digits = 0 if unit == "B" or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {unit}"


def written_text(num_bytes: int, of_bytes: int) -> str:
    """How much had to be written: "12.0 MiB written of 500 MiB". What describes a small state may be larger than it."""
    return f"{size(num_bytes)} written" + (f" of {size(of_bytes)}" if num_bytes < of_bytes else "")


def percent(ratio: float | None, digits: int = 1) -> str:
    return NOT_MEASURED if ratio is None else f"{100 * ratio:.{digits}f}%"


def clock(at: float | None) -> str:
    """Time of day with milliseconds, UTC."""
    if at is None:
        return NOT_MEASURED
    whole_ms = round(at * 1000)
    return f"{_utc(whole_ms // 1000):%H:%M:%S}.{whole_ms % 1000:03d}"


def stamp(at: float | None) -> str:
    return NOT_MEASURED if at is None else f"{_utc(at):%Y-%m-%d %H:%M:%S} UTC"


def short_stamp(at: float | None) -> str:
    return NOT_MEASURED if at is None else f"{_utc(at):%m-%d %H:%M:%S}"


def _utc(at: float) -> datetime:
    """Whole seconds, cut; a time that no calendar has (a broken clock) becomes the epoch."""
    try:
        return datetime.fromtimestamp(int(at), UTC)
    except (OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(0, UTC)


def ago(at: float | None, now: float) -> str:
    return NOT_MEASURED if at is None else f"{duration(max(0.0, now - at))} ago"


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
