"""A mapping that never changes and is cheap to change: what one report touches is copied, the rest is shared.

The state is a frozen value, and a fleet has 12,500 nodes and 100,000 ranks: with plain dicts each report would copy all
of them. Here a change copies a leaf of a few entries and two tuples of 64, whatever the size.

Reads, iteration and equality are a dict's: in the order in which keys came first, which does not depend on the process
(unlike libraries whose order follows `hash` of a string): the same journal must give the same actions in the same
order everywhere. Iterating sorts by that order, so it costs more than a dict's; it is for moments that concern the
whole fleet anyway.
"""

import zlib
from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from typing import Any, TypeVar, overload

K = TypeVar("K", bound=int | str)
V = TypeVar("V")
W = TypeVar("W")

_BITS = 6
_WIDTH = 1 << _BITS
_MASK = _WIDTH - 1
"""Fan-out of both levels, so 4,096 leaves. 100,000 entries: 24 per leaf; a million still work, a little slower."""

_TOGETHER = 4
"""Bits of an int that do not choose its leaf: neighbours, such as the ranks of a node, are copied together."""

_Leaf = dict[Any, tuple[int, Any]]  # key -> when it came, value
_Branch = tuple[_Leaf, ...]

_NO_LEAF: _Leaf = {}
_NO_BRANCH: _Branch = (_NO_LEAF,) * _WIDTH
_EMPTY: tuple[_Branch, ...] = (_NO_BRANCH,) * _WIDTH


class FrozenMap(Mapping[K, V]):
    """Keys are ranks (or other ints that are not negative) or names."""

    __slots__ = ("_came", "_root", "_size")

    def __init__(self, items: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        self._root = _EMPTY
        self._size = 0
        self._came = 0  # keys so far, also those that have gone again
        self._take(dict(items))

    def __getitem__(self, key: K) -> V:
        number = key >> _TOGETHER if isinstance(key, int) else _hash(key)
        found: V = self._root[number >> _BITS & _MASK][number & _MASK][key][1]
        return found

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, /, default: V | W) -> V | W: ...
    def get(self, key: K, /, default: V | W | None = None) -> V | W | None:
        number = key >> _TOGETHER if isinstance(key, int) else _hash(key)
        found = self._root[number >> _BITS & _MASK][number & _MASK].get(key)
        return default if found is None else found[1]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, int | str) and key in _leaf_of(self._root, key)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        return (key for _, key, _ in self._in_order())

    def items(self) -> ItemsView[K, V]:
        return _Items(self)

    def values(self) -> ValuesView[V]:
        return _Values(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FrozenMap) and self._root is other._root:
            return True
        return isinstance(other, Mapping) and self._size == len(other) and dict(self.items()) == dict(other.items())

    __hash__ = None  # type: ignore[assignment]  # as dict

    def __repr__(self) -> str:
        return f"FrozenMap({dict(self.items())!r})"

    def updated(self, items: Mapping[K, V]) -> "FrozenMap[K, V]":
        """With these entries; the order of keys that were there stays."""
        if not items:
            return self
        new = self._copy()
        new._take(items)
        return new

    def without(self, *keys: K) -> "FrozenMap[K, V]":
        """Less these keys, those of them that are there."""
        gone = [key for key in dict.fromkeys(keys) if key in self]
        if not gone:
            return self
        leaves: dict[int, _Leaf] = {}
        for key in gone:
            at = _place(key)
            if at not in leaves:
                leaves[at] = _leaf_of(self._root, key).copy()
            del leaves[at][key]
        new = self._copy()
        new._put(leaves)
        new._size -= len(gone)
        return new

    def _copy(self) -> "FrozenMap[K, V]":
        new: FrozenMap[K, V] = FrozenMap.__new__(FrozenMap)
        new._root, new._size, new._came = self._root, self._size, self._came
        return new

    def _take(self, items: Mapping[K, V]) -> None:
        """Add items in place. Allowed only until this map is shared."""
        leaves: dict[int, _Leaf] = {}
        for key, value in items.items():
            at = _place(key)
            leaf = leaves.get(at)
            if leaf is None:
                leaf = leaves[at] = _leaf_of(self._root, key).copy()
            before = leaf.get(key)
            if before is None:
                leaf[key] = (self._came, value)
                self._came += 1
                self._size += 1
            else:
                leaf[key] = (before[0], value)
        self._put(leaves)

    def _put(self, leaves: dict[int, _Leaf]) -> None:
        root = list(self._root)
        branches: dict[int, list[_Leaf]] = {}
        for at, leaf in leaves.items():
            branch = branches.get(at // _WIDTH)
            if branch is None:
                branch = branches[at // _WIDTH] = list(root[at // _WIDTH])
            branch[at % _WIDTH] = leaf
        for number, changed in branches.items():
            root[number] = tuple(changed)
        self._root = tuple(root)

    def _in_order(self) -> list[tuple[int, K, V]]:
        branches = (branch for branch in self._root if branch is not _NO_BRANCH)
        leaves = (leaf for branch in branches for leaf in branch if leaf)
        found = [(came, key, value) for leaf in leaves for key, (came, value) in leaf.items()]
        found.sort(key=_came)
        return found


class _Items(ItemsView[K, V]):
    def __iter__(self) -> Iterator[tuple[K, V]]:
        return ((key, value) for _, key, value in _entries(self))


class _Values(ValuesView[V]):
    def __iter__(self) -> Iterator[V]:
        return (value for _, _, value in _entries(self))


def _entries(view: ItemsView[K, V] | ValuesView[V]) -> list[tuple[int, K, V]]:
    shown: FrozenMap[K, V] = view._mapping  # type: ignore[union-attr]  # typeshed hides it
    return shown._in_order()


def _came(entry: tuple[int, Any, Any]) -> int:
    return entry[0]


def _place(key: int | str) -> int:
    """Number of the leaf; the same in every process."""
    number = key >> _TOGETHER if isinstance(key, int) else _hash(key)
    return number % (_WIDTH * _WIDTH)


def _hash(key: str) -> int:
    return zlib.crc32(key.encode("utf-8", "surrogatepass"))


def _leaf_of(root: tuple[_Branch, ...], key: int | str) -> _Leaf:
    at = _place(key)
    return root[at // _WIDTH][at % _WIDTH]


class Names:
    """Names in order, each once, of which one after the other is struck off: nodes whose answer is awaited."""

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names: FrozenMap[str, None] = FrozenMap((name, None) for name in names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Names) and self._names == other._names

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Names({list(self)!r})"

    def without(self, name: str) -> "Names":
        left = Names.__new__(Names)
        left._names = self._names.without(name)
        return left
