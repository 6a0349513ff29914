"""Placement of the copy of each rank's snapshots on a node. Pure; it knows nothing of a running job.

A unit is what may be lost or evicted as one: a machine, a rack, every machine of a parallel group. The copy goes to a
node that shares no unit with the rank's own, so that one of the two survives whatever is removed. A unit counts if it
touches any rank of the machine, not only this one: evictions remove whole machines. Copies are spread evenly.

Where no such node exists, the copy goes to the node with the fewest units in common, and `weaker` says what would lose
both. Racks are as large as they are: where most nodes are in one, those outside take at most MOST_LOAD times the even
share, and the rest is placed as if racks were not known. Called by `core.restore.backups`.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from everstep.model.facts import RankGroup

Units = frozenset[int]
"""Numbers of the units that a node is part of."""

RACK, OWN, NEIGHBOUR = 1 << 40, 1 << 20, 1
"""What it weighs to share a unit, for each machine that the unit is short of the whole job: the smaller it is, the more
likely it goes as one. A rack most, a group of a rank on the same machine least."""

MAX_NAMED = 3

MOST_LOAD = 2
"""Copies take memory. A node that refuses one for lack of it leaves a rank without any, which is worse than two copies
in one rack."""


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    backups: dict[int, str]  # rank -> node; empty with fewer than two nodes
    weaker: dict[int, str]  # rank -> which unit would take both copies; a rank that is not in it is as safe as can be
    crowded: frozenset[int] = frozenset()  # of these: nodes of other racks would share less, and have no room left


class _Unit(msgspec.Struct, frozen=True):
    name: str
    nodes: frozenset[int]
    ranks: frozenset[int]  # empty: a rack
    is_rack: bool = False


class _Source(msgspec.Struct, frozen=True):
    """Ranks of one node that may go to the same nodes."""

    node: int
    ranks: tuple[int, ...]
    allowed: frozenset[int] | None  # None: every node that shares no unit


def place(
    ranks_of_node: Mapping[str, Sequence[int]], groups: Sequence[RankGroup], racks: Mapping[str, str] | None = None
) -> Placement:
    """Where each rank's copy goes. `racks`: of the nodes of which it is known."""
    if len(ranks_of_node) < 2:
        return Placement(backups={}, weaker={})
    names = sorted(ranks_of_node, key=lambda node: min(ranks_of_node[node], default=math.inf))
    layout = _Layout([tuple(ranks_of_node[name]) for name in names], groups, [(racks or {}).get(n, "") for n in names])
    matching = _Matching(layout, _Layout(layout.ranks, groups, [""] * len(names)) if racks else None)
    chosen = matching.solve()
    backups = {rank: names[node] for rank, node in sorted(chosen.items())}
    weaker = {rank: why for rank, node in sorted(chosen.items()) if (why := layout.shared_text(rank, node, names))}
    return Placement(backups=backups, weaker=weaker, crowded=matching.crowded & weaker.keys())


class _Layout:
    """Nodes by number, and the units that they are part of."""

    def __init__(self, ranks: list[tuple[int, ...]], groups: Sequence[RankGroup], racks: list[str]) -> None:
        self.ranks = ranks
        self.node_of = {rank: node for node, mine in enumerate(ranks) for rank in mine}
        self.units = _units(self.node_of, groups, racks, len(ranks))
        of_node: list[set[int]] = [set() for _ in ranks]
        self._spanning = frozenset(n for n, unit in enumerate(self.units) if len(unit.nodes) == len(ranks))
        for number, unit in enumerate(self.units):
            if number not in self._spanning:  # it takes both copies wherever they are
                for node in unit.nodes:
                    of_node[node].add(number)
        self.units_of = [frozenset(numbers) for numbers in of_node]
        self._near_of: dict[Units, frozenset[int]] = {}
        self._weights_of: dict[tuple[Units, Units], list[int]] = {}

    def sources(self) -> list[_Source]:
        found: list[_Source] = []
        for node, ranks in enumerate(self.ranks):
            if self._has_free(node):
                found.append(_Source(node, ranks, None))
                continue
            own: dict[Units, list[int]] = {}
            for rank in ranks:
                own.setdefault(self._own(rank, node), []).append(rank)
            found += [_Source(node, tuple(mine), self._best(node, units)) for units, mine in own.items()]
        return found

    def is_allowed(self, source: _Source, node: int) -> bool:
        if source.allowed is not None:
            return node in source.allowed
        return node != source.node and self.units_of[node].isdisjoint(self.units_of[source.node])

    def places_of(self, rank: int) -> frozenset[int]:
        """Nodes for its copy."""
        node = self.node_of[rank]
        if not self._has_free(node):
            return self._best(node, self._own(rank, node))
        mine = self.units_of[node]
        return frozenset(n for n, units in enumerate(self.units_of) if n != node and units.isdisjoint(mine))

    def shared_text(self, rank: int, node: int, names: Sequence[str]) -> str:
        shared = self.units_of[self.node_of[rank]] & self.units_of[node] | self._spanning
        if not shared:
            return ""
        units = sorted((self.units[number] for number in shared), key=lambda unit: (rank not in unit.ranks, unit.name))
        told = [_named(unit, rank, names) for unit in units[:MAX_NAMED]]
        more = f" and {len(units) - MAX_NAMED} more" if len(units) > MAX_NAMED else ""
        return f"both copies would be lost with {'; '.join(told)}{more}"

    def _own(self, rank: int, node: int) -> Units:
        return frozenset(number for number in self.units_of[node] if rank in self.units[number].ranks)

    def _has_free(self, node: int) -> bool:
        """Whether some node shares no unit with it."""
        units = self.units_of[node]
        if 1 + sum(len(self.units[number].nodes) - 1 for number in units) < len(self.ranks):
            return True
        return len(self._near(units) | {node}) < len(self.ranks)

    def _near(self, units: Units) -> frozenset[int]:
        known = self._near_of.get(units)
        if known is None:
            known = self._near_of[units] = frozenset().union(*(self.units[number].nodes for number in units))
        return known

    def _best(self, node: int, own: Units) -> frozenset[int]:
        """Nodes with which the least is shared."""
        units = self.units_of[node]
        weights = self._weights_of.get((units, own))
        if weights is None:
            weights = self._weights_of[units, own] = self._weights(units, own)
        least = min(weight for other, weight in enumerate(weights) if other != node)
        return frozenset(other for other, weight in enumerate(weights) if weight == least and other != node)

    def _weights(self, units: Units, own: Units) -> list[int]:
        weights = [0] * len(self.ranks)
        for number in units:
            unit = self.units[number]
            kind = RACK if unit.is_rack else OWN if number in own else NEIGHBOUR
            for node in unit.nodes:
                weights[node] += kind * (len(self.ranks) - len(unit.nodes))
        return weights


class _Matching:
    """Ranks of equal number move together; each node takes the same number of them, or as near as can be."""

    def __init__(self, layout: _Layout, without_racks: _Layout | None = None) -> None:
        self._layout = layout
        self._without_racks = without_racks
        self.crowded: frozenset[int] = frozenset()
        sources = layout.sources()
        self._size = math.gcd(*(len(source.ranks) for source in sources))
        self._items = [
            (source, source.ranks[first : first + self._size])
            for source in sources
            for first in range(0, len(source.ranks), self._size)
        ]
        self._num_nodes = len(layout.ranks)
        self._room = math.ceil(len(self._items) / self._num_nodes)
        self._most = MOST_LOAD * self._room
        self._at: list[int] = [-1] * len(self._items)  # item -> node
        self._held: list[list[int]] = [[] for _ in layout.ranks]  # node -> items

    def solve(self) -> dict[int, int]:
        left = self._by_shifts(range(len(self._items)))
        while left:
            left = [item for item in left if not self._augment(item)]
            if left and self._room >= self._most and self._without_racks is not None:
                self._forget_racks(left if not self.crowded else range(len(self._items)), self._without_racks)
            else:
                self._room += bool(left)
        return {rank: self._at[item] for item, (_, ranks) in enumerate(self._items) for rank in ranks}

    def _forget_racks(self, items: Sequence[int], layout: _Layout) -> None:
        """First of those who found no place, then of all: the others move only if one of those needs their place."""
        if len(items) == len(self._items):
            self._without_racks = None
        for item in items:
            source, ranks = self._items[item]
            self._items[item] = (_Source(source.node, source.ranks, layout.places_of(ranks[0])), ranks)
            self.crowded |= set(ranks)

    def _by_shifts(self, items: Iterable[int]) -> list[int]:
        """Most find their place as far from their own node as the one before did; the distances that worked are tried
        first, as those of a regular job are few. Returns who found none."""
        distances: deque[int] = deque(_first_distances(self._num_nodes))
        left = []
        for item in items:
            source = self._items[item][0]
            for tried, distance in enumerate(distances):
                node = (source.node + distance) % self._num_nodes
                if len(self._held[node]) < self._room and self._layout.is_allowed(source, node):
                    self._put(item, node)
                    if tried:
                        del distances[tried]
                        distances.appendleft(distance)
                    break
            else:
                left.append(item)
        return left

    def _augment(self, item: int) -> bool:
        """Make room by moving others on: the shortest chain of moves, if there is any."""
        unseen = list(range(self._num_nodes))
        came_by: dict[int, int] = {}  # node -> item that would move to it
        waiting = deque([item])
        while waiting:
            mover = waiting.popleft()
            source, rest = self._items[mover][0], []
            for node in unseen:
                if not self._layout.is_allowed(source, node):
                    rest.append(node)
                    continue
                came_by[node] = mover
                if len(self._held[node]) < self._room:
                    self._move(node, came_by)
                    return True
                waiting.extend(self._held[node])
            unseen = rest
        return False

    def _move(self, node: int, came_by: Mapping[int, int]) -> None:
        while node >= 0:
            mover = came_by[node]
            left = self._at[mover]
            if left >= 0:
                self._held[left].remove(mover)
            self._put(mover, node)
            node = left

    def _put(self, item: int, node: int) -> None:
        self._at[item] = node
        self._held[node].append(item)


def _first_distances(num_nodes: int) -> list[int]:
    """Half of the way, and what is near powers of two: one of them crosses every axis of a regular layout."""
    half = num_nodes // 2
    near = [half + 1, half - 1, half, 1, num_nodes - 1]
    power = 1
    while power < num_nodes:
        near += [power + 1, power, power - 1, num_nodes - power - 1, num_nodes - power]
        power *= 2
    return list(dict.fromkeys(distance % num_nodes for distance in near if distance % num_nodes))


def _units(node_of: Mapping[int, int], groups: Sequence[RankGroup], racks: list[str], num_nodes: int) -> list[_Unit]:
    """Those of more than one node; several groups on the same machines are one unit."""
    by_nodes: dict[frozenset[int], tuple[str, set[int]]] = {}
    for group in groups:
        nodes = frozenset(node_of[rank] for rank in group.ranks if rank in node_of)
        if len(nodes) > 1:
            by_nodes.setdefault(nodes, (group.title, set()))[1].update(group.ranks)
    units = [_Unit(title, nodes, frozenset(ranks)) for nodes, (title, ranks) in by_nodes.items()]
    of_rack: dict[str, set[int]] = {}
    for node, rack in enumerate(racks):
        if rack:
            of_rack.setdefault(rack, set()).add(node)
    return units + [_Unit(f"rack {r}", frozenset(n), frozenset(), True) for r, n in of_rack.items() if len(n) > 1]


def _named(unit: _Unit, rank: int, names: Sequence[str]) -> str:
    if unit.is_rack:
        return unit.name
    whose = "its" if rank in unit.ranks else "its machine's"
    if len(unit.nodes) == len(names):
        return f"{whose} group {unit.name}, which spans every node"
    return f"{whose} group {unit.name} ({len(unit.nodes)} nodes)"
