"""How large decoded data is once everything that it shares is written out. Pure.

A pickle of 300 bytes can hold a tuple of three times itself, forty deep: small in memory, endless to walk. So data is
measured before it is walked.
"""

import itertools

_Container = list[object] | tuple[object, ...] | dict[object, object]

MAX_EXPANDED = 24_000_000
"""Values, with each piece of 64 characters of text as one more. A dump of 20,000 records with stacks has a third."""

MAX_DEPTH = 64
"""torch's records are seven deep."""

_DEEP = f"nested more than {MAX_DEPTH} deep: not a dump"

_PIECE = 64


class _TooMuchError(Exception):
    """The text says what is wrong with the data, for a person."""


def objection(value: object) -> str:
    """Why this data should not be walked: it is deep, contains itself, or is too large. Empty: it may be."""
    try:
        if isinstance(value, list | tuple | dict):
            _expanded(value, {}, set())
    except _TooMuchError as error:
        return str(error)
    return ""


def _expanded(container: _Container, done: dict[int, tuple[int, int]], open_: set[int]) -> tuple[int, int]:
    """How many values it is when written out, and how deep. `done`: the same of containers that were measured, which
    live as long as the whole; `open_`: those that it stands in. Texts and numbers are looked at where they stand,
    without a call: the records of 1,000 ranks have a hundred million."""
    key = id(container)
    if key in open_:
        raise _TooMuchError("it contains itself")
    open_.add(key)
    total, depth = 1, 1
    inside = itertools.chain(container, container.values()) if isinstance(container, dict) else container
    if len(open_) > MAX_DEPTH:
        raise _TooMuchError(_DEEP)
    for inner in inside:
        if isinstance(inner, str):
            total += 1 + len(inner) // _PIECE
        elif isinstance(inner, list | tuple | dict):
            size, below = done.get(id(inner)) or _expanded(inner, done, open_)
            total += size
            depth = max(depth, 1 + below)
        else:
            total += 1
    if len(open_) + depth - 1 > MAX_DEPTH:
        raise _TooMuchError(_DEEP)
    if total > MAX_EXPANDED:
        raise _TooMuchError(f"more than {MAX_EXPANDED:,} values when written out: not a dump of one rank")
    open_.discard(key)
    done[key] = total, depth
    return total, depth
