"""How large decoded data is once everything that it shares is written out. Pure.

A pickle of 300 bytes can hold a tuple of three times itself, forty deep: small in memory, without end for whoever walks
it. So data is measured before anybody does.
"""

MAX_EXPANDED = 24_000_000
"""Values, with each piece of 64 characters of text as one more. A dump of 20,000 records with stacks has a third."""

MAX_DEPTH = 64
"""torch's records are seven deep."""

_PIECE = 64


def objection(value: object) -> str:
    """Why this data should not be walked: it is deep, contains itself, or is too large. Empty: it may be."""
    sizes: dict[int, int] = {}  # of containers that are done; they live as long as `value`
    open_: set[int] = set()
    stack: list[tuple[object, bool]] = [(value, False)]
    while stack:
        each, is_done = stack.pop()
        if not isinstance(each, list | tuple | dict):
            continue
        key = id(each)
        if is_done:
            open_.discard(key)
            sizes[key] = total = 1 + sum(_size(inner, sizes) for inner in _inside(each))
            if total > MAX_EXPANDED:
                return f"more than {MAX_EXPANDED:,} values when written out: not a dump of one rank"
        elif key in open_:
            return "it contains itself"
        elif key not in sizes:
            open_.add(key)
            if len(open_) > MAX_DEPTH:
                return f"nested more than {MAX_DEPTH} deep: not a dump"
            stack.append((each, True))
            stack.extend((inner, False) for inner in _inside(each))
    return ""


def _inside(container: object) -> list[object]:
    if isinstance(container, dict):
        return [*container.keys(), *container.values()]
    return list(container) if isinstance(container, list | tuple) else []


def _size(value: object, sizes: dict[int, int]) -> int:
    if isinstance(value, str):
        return 1 + len(value) // _PIECE
    return sizes.get(id(value), 1)
