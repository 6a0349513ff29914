"""A topology as numbers: the neighbours of each node, the tier of each switch, and which hosts are close together."""

from collections import deque
from collections.abc import Iterable, Sequence
from functools import cached_property

from everstep.fabric.topology.values import Cable, FabricError, Topology, check_whole


class Graph:
    """Nodes are numbered: hosts first, then switches, both in the order of the topology."""

    def __init__(self, topology: Topology) -> None:
        """Raises FabricError as `check_whole` does."""
        self.topology = check_whole(topology)
        self.names = [*topology.host_names(), *(switch.name for switch in topology.switches)]
        self.index = {name: number for number, name in enumerate(self.names)}
        self.num_hosts = len(topology.hosts)
        self.cables = [cable for cable in topology.cables if cable.is_up]
        self.neighbours: list[list[tuple[int, int]]] = [[] for _ in self.names]  # (node, index in `cables`)
        for number, cable in enumerate(self.cables):
            one, other = self.index[cable.one.node], self.index[cable.other.node]
            self.neighbours[one].append((other, number))
            self.neighbours[other].append((one, number))

    def is_host(self, node: int) -> bool:
        return node < self.num_hosts

    @cached_property
    def tiers(self) -> list[int]:
        """Tier of each node: 0 for hosts; for a switch the tier that the topology states, else its distance from the
        nearest host; 1 if it has no path to a host."""
        found = [0 if self.is_host(node) else -1 for node in range(len(self.names))]
        todo = deque(range(self.num_hosts))
        while todo:
            node = todo.popleft()
            for other, _ in self.neighbours[node]:
                if found[other] < 0:
                    found[other] = found[node] + 1
                    todo.append(other)
        for number, switch in enumerate(self.topology.switches):
            node = self.num_hosts + number
            found[node] = switch.tier if switch.tier is not None else max(found[node], 1)
        return found

    @property
    def num_tiers(self) -> int:
        return max(self.tiers, default=0)

    def components(self, up_to_tier: int | None = None) -> list[int]:
        """For each node the number of its group: nodes that reach each other through switches of at most that tier. -1
        for a switch of a higher tier."""
        group = [-1] * len(self.names)
        for start in range(len(self.names)):
            if group[start] >= 0 or not self._counts(start, up_to_tier):
                continue
            group[start] = start
            todo = [start]
            while todo:
                for other, _ in self.neighbours[todo.pop()]:
                    if group[other] < 0 and self._counts(other, up_to_tier):
                        group[other] = start
                        todo.append(other)
        return group

    def _counts(self, node: int, up_to_tier: int | None) -> bool:
        return up_to_tier is None or self.tiers[node] <= up_to_tier

    @cached_property
    def _columns(self) -> list[tuple[str, list[int]]]:
        """The name of each level and the group of each host in it; the level with the smallest groups first."""
        columns = [
            (f"joined by tier {tier}", self.components(tier)[: self.num_hosts]) for tier in range(1, self.num_tiers + 1)
        ]
        domains = [host.domain for host in self.topology.hosts]
        if any(domains):
            known = {name: number for number, name in enumerate(dict.fromkeys(name for name in domains if name))}
            groups = [known[name] if name else -1 - host for host, name in enumerate(domains)]
            columns.insert(0, ("accelerator domains", groups))
        return sorted(columns, key=lambda column: -len(set(column[1])))

    @property
    def level_names(self) -> list[str]:
        return [name for name, _ in self._columns]

    @cached_property
    def levels(self) -> list[tuple[int, ...]]:
        """For each host its groups, the smallest first: same leaves, same pod, and so on.

        If accelerator domains are known, they are one level. The distance of two hosts is the number of levels in which
        they differ. A host without a cable is a group of its own.
        """
        return [tuple(groups[host] for _, groups in self._columns) for host in range(self.num_hosts)]

    def require_connected(self, hosts: Iterable[str] | None = None) -> None:
        """Raise a FabricError that names two hosts if there is no path between them."""
        names = list(self.topology.host_names() if hosts is None else hosts)
        groups = self.components()
        for name in names[1:]:
            if groups[self.host(name)] != groups[self.host(names[0])]:
                raise FabricError(f"{self.topology.source}: disconnected: no path from {names[0]} to {name}")

    def host(self, name: str) -> int:
        """Number of the host with this name. Raises FabricError if there is none."""
        number = self.index.get(name, -1)
        if not 0 <= number < self.num_hosts:
            raise FabricError(f"{self.topology.source}: unknown host: {name}")
        return number

    def leaves_of(self, host: int) -> list[tuple[int, Cable]]:
        return [(other, self.cables[number]) for other, number in self.neighbours[host] if not self.is_host(other)]


def tiers_of_tree(source: str, children: dict[str, Sequence[str]]) -> dict[str, int]:
    """Tier of each switch. `children`: switches below each switch; a leaf has none. Raises FabricError for a cycle."""
    tiers: dict[str, int] = {}
    path: dict[str, None] = {}
    for top in children:
        stack: list[tuple[str, int]] = [(top, 0)]
        while stack:
            name, place = stack.pop()
            if name in tiers:
                continue
            if place == 0 and name in path:
                cycle = [*list(path)[list(path).index(name) :], name]
                raise FabricError(f"{source}: cyclic topology: {' > '.join(cycle)}")
            path[name] = None
            below = children.get(name, ())
            if place < len(below):
                stack += [(name, place + 1), (below[place], 0)]
                continue
            tiers[name] = 1 + max((tiers[each] for each in below), default=0)
            del path[name]
    return tiers
