"""What every sense of a node has in common: it looks, and says what is wrong, or that it cannot tell.

A sense that cannot tell raises `UnsupportedError` with the reason: an empty list means "looked, and nothing is
wrong", and nothing else. Senses decide nothing and keep no clock of their own; `agent.senses.sensing` calls each at
its own cadence, in a thread that may be lost. They must not be called from two threads at once.
"""

from pathlib import Path
from typing import Protocol

from everstep.knowledge.node_codes import SENSED
from everstep.model.facts import Alert


class UnsupportedError(Exception):
    """This node cannot tell. The text is the reason, for people."""


class Sense(Protocol):
    """One way to notice that something is wrong with the node."""

    name: str  # also the `source` of its alerts
    every_s: float

    def look(self, now: float) -> list[Alert]:
        """What is wrong now. Raises UnsupportedError."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
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
    """An alert of a sensed condition; what is not given is as the code's table has it."""
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
    """A small file of /proc or /sys, stripped; None when it is not there or cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """None as well for anything that is not a number: a counter is never made up."""
    text = read_text(path)
    try:
        return int(text, 0) if text else None
    except ValueError:
        return None


def names_in(folder: Path) -> list[str]:
    """Sorted names; none when the folder is not there."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


class Counters:
    """Cumulative counters between two looks. What was not read before, or went backwards (a driver was loaded again),
    has no difference."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}

    def grown(self, name: str, value: int | None) -> int:
        """By how much it grew since the last look; 0 when that cannot be told."""
        if value is None:
            self._before.pop(name, None)
            return 0
        before = self._before.get(name)
        self._before[name] = value
        return value - before if before is not None and value > before else 0
