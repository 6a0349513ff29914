"""A topology as arrays: two links per cable, one each way, and the distance of each switch from each leaf."""

from typing import Any

import numpy as np

from everstep.fabric.topology.graph import Graph
from everstep.fabric.topology.values import FabricError

Array = Any  # a numpy array; its stubs are not imported
FAR = 10_000
"""Distance if there is no path; small enough to add to in int16."""


class Network:
    """Link 2*i goes from `one` to `other` of cable i, link 2*i + 1 back."""

    def __init__(self, graph: Graph) -> None:
        """Raises FabricError if the speed of a cable is unknown."""
        self.graph = graph
        cables = graph.cables
        for cable in cables:
            if cable.bps is None:
                raise FabricError(
                    f"{graph.topology.source}: cable {cable.label}: its speed is not known. "
                    "A simulation needs all of them. Write `speed` into a TOML of one's own (docs/fabric.md)"
                )
        ends = [(graph.index[cable.one.node], graph.index[cable.other.node]) for cable in cables]
        self.tail = np.array([node for pair in ends for node in pair], dtype=np.int64)
        self.head = np.array([node for one, other in ends for node in (other, one)], dtype=np.int64)
        self.capacity: Array = np.repeat(np.array([cable.bps for cable in cables], dtype=float), 2)
        self.tiers = np.array(graph.tiers, dtype=np.int64)
        self.nics = self._nics()
        self.leaves = sorted({int(node) for node in self.head[self._from_hosts()]})
        self.leaf_number: Array = np.full(len(graph.names), -1, dtype=np.int64)
        self.leaf_number[self.leaves] = np.arange(len(self.leaves))
        self.outgoing: list[list[int]] = [[] for _ in graph.names]
        for link, node in enumerate(self.tail.tolist()):
            self.outgoing[node].append(link)
        self.down, self.anywhere = self._distances()

    def _from_hosts(self) -> Array:
        return (self.tail < self.graph.num_hosts) & (self.head >= self.graph.num_hosts)

    def _nics(self) -> list[list[int]]:
        """For each host, the links that leave it: by rail if the rails are known, else in the order of the cables."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.graph.num_hosts)]
        nics = (nic for host in self.graph.topology.hosts for nic in host.nics)
        rails = {(nic.node, nic.name): nic.rail for nic in nics if nic.rail is not None}
        for number, cable in enumerate(self.graph.cables):
            for way, end in enumerate((cable.one, cable.other)):
                node = self.graph.index[end.node]
                if node < self.graph.num_hosts:
                    rail = end.rail if end.rail is not None else rails.get((end.node, end.name), len(found[node]))
                    found[node].append((rail, 2 * number + way))
        return [[link for _, link in sorted(links)] for links in found]

    def rails_of(self, host: int) -> list[int]:
        """The rail of each link of the host, in the order of `nics`; the link's position if the rail is unknown."""
        names = []
        for place, link in enumerate(self.nics[host]):
            cable = self.graph.cables[link // 2]
            end = cable.one if link % 2 == 0 else cable.other
            nic = next((nic for nic in self.graph.topology.hosts[host].nics if nic.name == end.name), end)
            names.append(place if nic.rail is None else nic.rail)
        return names

    def _distances(self) -> tuple[Array, Array]:
        """Hops from each node to each leaf, shape (nodes, leaves): on paths that only go down, and on all paths."""
        down: Array = np.full((len(self.tiers), len(self.leaves)), FAR, dtype=np.int16)
        down[self.leaves, np.arange(len(self.leaves))] = 0
        switches = [node for node in np.argsort(self.tiers, kind="stable").tolist() if node >= self.graph.num_hosts]
        for node in switches:
            for link in self.outgoing[node]:
                other = self.head[link]
                if self.graph.num_hosts <= other and self.tiers[other] < self.tiers[node]:
                    np.minimum(down[node], down[other] + 1, out=down[node])
        anywhere = down.copy()
        for node in reversed(switches):
            for link in self.outgoing[node]:
                other = self.head[link]
                if self.tiers[other] > self.tiers[node]:
                    np.minimum(anywhere[node], anywhere[other] + 1, out=anywhere[node])
        return down, anywhere

    def next_links(self, node: int, leaf: int, *, is_descending: bool) -> Array:
        """All links out of `node` on shortest paths to that leaf. Paths go up, then down, never up again."""
        links = np.array(self.outgoing[node], dtype=np.int64)
        if len(links) == 0:
            return links
        heads = self.head[links]
        below = (self.tiers[heads] < self.tiers[node]) & (heads >= self.graph.num_hosts)
        above = self.tiers[heads] > self.tiers[node]
        if is_descending or self.down[node, leaf] <= self.anywhere[node, leaf]:
            far = np.where(below, self.down[heads, leaf], FAR)
        else:
            far = np.where(above, self.anywhere[heads, leaf], FAR)
        nearest = far.min()
        return links[far == nearest] if nearest < FAR else links[:0]

    def label(self, link: int) -> str:
        """`n0:nic0 > leaf0`."""
        cable = self.graph.cables[link // 2]
        one, other = (cable.one, cable.other) if link % 2 == 0 else (cable.other, cable.one)
        return f"{one.label} > {other.label}"
