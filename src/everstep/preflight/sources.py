"""Reads single values from /proc and /sys into results: a value, or the reason why there is none.

Called by the inventory checks. Nothing here waits or writes; a file that blocks is the runner's business.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from everstep.preflight.result import Better, Result, Value, Yielded, measured, unsupported


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a check's table: a file that holds one value."""

    name: str
    path: str
    unit: str = ""
    better: Better = Better.SAME
    parse: Callable[[str], Value] = int
    tolerance: float = 0.2


def under(root: str, path: str) -> Path:
    """`path` as seen from another root."""
    return Path(path) if root == "/" else Path(root) / path.lstrip("/")


def text_of(root: str, path: str) -> str | None:
    """Content without the surrounding blanks; None when it cannot be read."""
    try:
        return under(root, path).read_text(errors="replace").strip()
    except OSError:
        return None


def names_in(root: str, path: str) -> list[str]:
    """Sorted entries of a folder; none when there is no such folder."""
    try:
        return sorted(entry.name for entry in under(root, path).iterdir())
    except OSError:
        return []


def read_places(root: str, places: Sequence[Place], *, prefix: str = "", device: str = "") -> list[Result]:
    return [read_place(root, place, prefix=prefix, device=device) for place in places]


def read_place(root: str, place: Place, *, prefix: str = "", device: str = "") -> Result:
    name = f"{prefix}{place.name}"
    how = f"read {place.path}"
    try:
        text = under(root, place.path).read_text(errors="replace").strip()
        value = place.parse(text)
    except OSError as error:
        return unsupported(name, f"{place.path}: {error.strerror or error}", place.unit, how=how, device=device)
    except (ValueError, IndexError) as error:
        return unsupported(name, f"{place.path}: not understood: {error}", place.unit, how=how, device=device)
    if value is None or value == "":
        return unsupported(name, f"{place.path}: the kernel does not know", place.unit, how=how, device=device)
    return measured(name, value, place.unit, how=how, better=place.better, tolerance=place.tolerance, device=device)


def whole(text: str) -> str:
    return " ".join(text.split())


def chosen(text: str) -> str:
    """The entry in brackets of "always [madvise] never"."""
    return text.partition("[")[2].partition("]")[0] or text


def not_negative(text: str) -> Value:
    """The kernel writes -1 for "not known"."""
    number = int(text)
    return None if number < 0 else number


def keyed(text: str) -> dict[str, str]:
    """ "Key:   value" lines, the first of each key."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            found.setdefault(key.strip(), value.strip())
    return found


def parts(check: str, *sources: Iterator[Yielded]) -> Iterator[Yielded]:
    """The results of several generators. One that meets what it does not understand costs only the rest of itself."""
    for source in sources:
        try:
            yield from source
        except (ValueError, LookupError, OSError) as error:
            name = getattr(source, "__name__", "part").strip("_")
            why = f"what the kernel says was not understood: {type(error).__name__}: {error}"[:200]
            yield unsupported(f"{check}.{name}.rest", why)
