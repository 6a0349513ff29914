"""A frozen map behaves as a dict whatever is done to it, and whoever keeps an older one sees no change."""

from hypothesis import given
from hypothesis import strategies as st

from everstep.core.state.frozenmap import FrozenMap, Names

KEYS = st.integers(0, 70_000) | st.sampled_from([0, 1, 15, 16, 65_535, 65_536, 65_551])
NAMES = st.sampled_from([f"n{number}" for number in range(40)]) | st.text(max_size=3)


def changes(keys):
    put = st.tuples(st.just("put"), st.dictionaries(keys, st.integers(), max_size=6))
    drop = st.tuples(st.just("drop"), st.lists(keys, max_size=4))
    return st.lists(put | drop, max_size=20)


def follow(story):
    """The same story told to a frozen map and to dicts: every version of both."""
    frozen, plain = FrozenMap(), {}
    versions = [(frozen, dict(plain))]
    for what, given_ in story:
        if what == "put":
            frozen = frozen.updated(given_)
            plain.update(given_)
        else:
            frozen = frozen.without(*given_)
            for key in given_:
                plain.pop(key, None)
        versions.append((frozen, dict(plain)))
    return versions


@given(changes(KEYS))
def test_ranks_read_as_in_a_dict_in_every_version(story):
    for frozen, plain in follow(story):
        assert list(frozen.items()) == list(plain.items()), "also in the same order"
        assert list(frozen.values()) == list(plain.values())
        assert len(frozen) == len(plain)
        assert frozen == plain
        assert all(frozen[key] == value and key in frozen for key, value in plain.items())


@given(changes(NAMES), NAMES)
def test_names_read_as_in_a_dict_in_every_version(story, absent):
    for frozen, plain in follow(story):
        assert list(frozen) == list(plain)
        assert frozen.get(absent) == plain.get(absent)
        assert (absent in frozen) == (absent in plain)
        assert frozen == FrozenMap(dict(reversed(plain.items()))), "equal is who holds the same, in whatever order"


@given(st.lists(NAMES, unique=True), st.data())
def test_names_are_struck_off_one_by_one(names, data):
    left = Names(names)
    for name in data.draw(st.permutations(names)):
        assert name in left
        fewer = left.without(name)
        assert list(fewer) == [other for other in left if other != name]
        assert fewer != left
        left = fewer
    assert not left
