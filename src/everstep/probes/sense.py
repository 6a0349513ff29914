"""Interface of all senses of a node: a sense looks, and returns what is wrong, or raises if it cannot tell.

A sense that cannot tell raises `UnsupportedError` with the reason. An empty list always means "looked, and nothing is
wrong". Senses take no decisions and keep no clock; `agent.senses.sensing` calls each at its own interval, in a thread
that may hang. Do not call a sense from two threads at once.
"""

from pathlib import Path
from typing import Protocol

from everstep.knowledge.node_codes import SENSED
from everstep.model.facts import Alert


class UnsupportedError(Exception):
    """This node cannot tell. The text is the reason, for users."""


class Sense(Protocol):
    """One way to detect a fault of the node."""

    name: str  # also the `source` of its alerts
    every_s: float

    def look(self, now: float) -> list[Alert]:
        """Alerts for what is wrong now. Raises UnsupportedError."""
        ...

    def close(self) -> None:
        """Release its resources."""
        ...


def alert(
    code: str,
    sentence: str,
    *,
    at: float,
    source: str,
    device: str = "",
    severity: str = "",
    component: str = "",
    line: str = "",
    rank: int | None = None,
    count: int = 1,
) -> Alert:
    """An alert of a sensed condition; missing arguments come from the table of codes."""
    known = SENSED[code]
    return Alert(
        at=at,
        code=code,
        sentence=sentence,
        component=component or known.component,
        blame=known.blame,
        severity=severity or known.severity,
        action=known.action,
        role=known.role,
        source=source,
        line=line,
        device=device,
        rank=rank,
        count=count,
    )


def read_text(path: Path) -> str | None:
    """Text of a small file of /proc or /sys, stripped; None if it is missing or not readable."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """The number in a file; None also if it is not a number: a counter is never invented."""
    text = read_text(path)
    try:
        return int(text, 0) if text else None
    except ValueError:
        return None


def names_in(folder: Path) -> list[str]:
    """Sorted names; empty if the folder is missing."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


class Counters:
    """Growth of cumulative counters between two looks. A counter that was not read before, or went backwards (a driver
    was reloaded), has no growth."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}

    def grown(self, name: str, value: int | None) -> int:
        """Growth since the last look; 0 if unknown."""
        if value is None:
            self._before.pop(name, None)
            return 0
        before = self._before.get(name)
        self._before[name] = value
        return value - before if before is not None and value > before else 0
