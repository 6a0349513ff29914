"""Reports of a node whose clock is wrong, converted to the controller's time. Pure.

Times in an event are on the observer's clock. The brain compares them with those of other nodes, and sets timers by
them: an end reported an hour ahead would be looked at an hour later. So the controller asks every peer for its clock
when they meet, and shifts all its reports by the difference. Small differences stay: moving times by what is hardly
known would make them worse.
"""

from typing import Any, TypeVar

import msgspec

SMALL_S = 2.0

_T = TypeVar("_T")


def ahead_s(theirs: float | None, asked: float, answered: float) -> float:
    """How far a clock is ahead of ours, for certain; 0 if that is unknown, or too little.

    `asked`, `answered`: our clock when the other was asked for its own, and when its answer was read. It read `theirs`
    at some moment between the two. So a controller that is late by ten seconds, with thousands that come back at once,
    finds no clock wrong for that: its own lateness is between the two.
    """
    if theirs is None or answered < asked:
        return 0.0
    difference = max(0.0, theirs - answered) + min(0.0, theirs - asked)
    return difference if abs(difference) > SMALL_S else 0.0


def moved(event: _T, by_s: float) -> _T:
    """Return the event with every time in it (`at`, `since`, `..._at`) moved, however deep it lies. An unknown time
    stays unknown."""
    return _moved(event, by_s) if by_s else event


def _moved(value: Any, by_s: float) -> Any:  # noqa: ANN401 - events have fields of all kinds
    if isinstance(value, tuple):
        return tuple(_moved(each, by_s) for each in value)
    if isinstance(value, dict):
        return {key: _moved(each, by_s) for key, each in value.items()}
    if not isinstance(value, msgspec.Struct):
        return value
    changes = {}
    for name in value.__struct_fields__:
        found = getattr(value, name)
        if isinstance(found, float) and (name in ("at", "since") or name.endswith("_at")):
            changes[name] = found + by_s
        elif isinstance(found, tuple | dict | msgspec.Struct):
            changes[name] = _moved(found, by_s)
    return msgspec.structs.replace(value, **changes) if changes else value
