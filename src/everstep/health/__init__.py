"""The memory of machines across runs, for callers that it must never stop.

    health.record(HealthEvent(host=..., at=..., kind=Kind.EVICTION, code="ES-G79", why="...", run="..."))
    health.passed(host, at=..., why="everstep check --quick")
    health.state_of(host)          None: nothing on record, or the store cannot be read

Everything here waits at most `store.BUSY_S`, raises nothing, and logs once per process when the store cannot be used.
To get the reason call `health.store.Store`.
"""

import logging
from pathlib import Path

from everstep.health.rules import HealthEvent, Kind, State
from everstep.health.store import HealthError, NodeHealth, Store

__all__ = ["HealthEvent", "Kind", "NodeHealth", "State", "passed", "record", "state_of"]

_log = logging.getLogger(__name__)
_said: set[str] = set()


def record(event: HealthEvent, path: Path | None = None) -> bool:
    """Remember something that happened to a machine. False when it could not be written."""
    try:
        Store(path).record(event)
    except Exception as error:
        _say(error)
        return False
    return True


def passed(host: str, *, at: float, why: str, by: str = "everstep check", path: Path | None = None) -> bool:
    """A check of the machine passed: it is no longer suspect, and may be readmitted."""
    return record(HealthEvent(host=host, at=at, kind=Kind.CHECK_PASSED, why=why, by=by), path)


def state_of(host: str, now: float, path: Path | None = None) -> NodeHealth | None:
    """None: nothing is known, which is not the same as healthy."""
    try:
        return Store(path).host(host, now)
    except Exception as error:
        _say(error)
        return None


def _say(error: Exception) -> None:
    """Once for each kind of trouble: a full disk must not fill the log as well."""
    name = type(error).__name__ if not isinstance(error, HealthError) else str(error)
    if name not in _said:
        _said.add(name)
        _log.warning("machines are not remembered: %s", error)
