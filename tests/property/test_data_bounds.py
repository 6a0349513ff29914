"""What is measured before it is walked: the same as when everything shared is written out."""

from hypothesis import given
from hypothesis import strategies as st

from everstep.analyzer.reading import bounds

LEAVES = st.sampled_from([None, 3, "k", "x" * 63, "x" * 64, "x" * 300])
SHAPES = st.lists(st.tuples(st.sampled_from([list, tuple, dict]), st.lists(st.integers(0, 99), max_size=4)), min_size=1)


def built(shapes: list[tuple[type, list[int]]], leaves: list[object]) -> object:
    """Containers of earlier ones, so that much is shared."""
    pool: list[object] = list(leaves)
    for kind, picks in shapes:
        inner = [pool[-1 - pick % min(len(pool), 6)] for pick in picks]
        pool.append({f"k{n}": each for n, each in enumerate(inner)} if kind is dict else kind(inner))
    return pool[-1]


def written_out(value: object, left: int) -> int:
    """Values, counted one by one as they would be walked; stops soon after `left`."""
    if isinstance(value, str):
        return 1 + len(value) // 64
    total = 1
    for each in (
        [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    ):
        if total > left:
            break
        total += written_out(each, left - total)
    return total


def depth(value: object) -> int:
    if not isinstance(value, list | tuple | dict):
        return 0
    return 1 + max((depth(each) for each in (value.values() if isinstance(value, dict) else value)), default=0)


@given(SHAPES.filter(lambda shapes: len(shapes) <= 9), st.lists(LEAVES, min_size=1, max_size=4))
def test_what_is_large_or_deep_when_written_out_is_refused_and_nothing_else(shapes, leaves):
    value = built(shapes, leaves)
    largest, deepest = bounds.MAX_EXPANDED, bounds.MAX_DEPTH
    bounds.MAX_EXPANDED, bounds.MAX_DEPTH = 60, 5
    try:
        refused = bool(bounds.objection(value))
    finally:
        bounds.MAX_EXPANDED, bounds.MAX_DEPTH = largest, deepest
    assert refused == (written_out(value, 60) > 60 or depth(value) > 5)


def test_what_contains_itself_is_refused():
    ring: list[object] = []
    ring.append({"a": (ring,)})
    assert bounds.objection(ring) == "it contains itself"


def test_what_is_shared_without_end_is_refused_at_once():
    value: tuple[object, ...] = ("x",)
    for _ in range(60):
        value = (value, value, value)
    assert "written out" in bounds.objection(value)
