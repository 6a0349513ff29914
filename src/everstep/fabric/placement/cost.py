"""Cost of an assignment of hosts: the fullest way out of a group of hosts, then all traffic that leaves groups."""

from collections.abc import Sequence

import msgspec

from everstep.fabric.placement.traffic import Traffic
from everstep.fabric.topology.graph import Graph


class Cost(msgspec.Struct, frozen=True, order=True):
    """Cost of an assignment. The fields are compared in this order."""

    bottleneck: float  # traffic over capacity of the fullest way into or out of a group
    crossing: float  # traffic, once for each level that it leaves

    def is_better_than(self, other: "Cost") -> bool:
        """Whether it is smaller by more than a rounding error."""
        if abs(self.bottleneck - other.bottleneck) > 1e-9 * max(1e-9, other.bottleneck):
            return self.bottleneck < other.bottleneck
        return self.crossing < other.crossing * (1 - 1e-9)


class Costs:
    """Costs of assignments on one network, at the levels of its graph. No traffic leaves a level with one group."""

    def __init__(self, graph: Graph) -> None:
        self.levels = graph.levels
        self.num_levels = len(graph.levels[0]) if graph.levels else 0
        self._capacity = [_capacities(graph, level) for level in range(self.num_levels)]
        self.is_assumed = any(cable.bps is None for cable in graph.cables)
        self._speeds = [_speed_of(graph, host) for host in range(graph.num_hosts)]

    def capacity(self, level: int, group: int) -> float:
        return self._capacity[level][group]

    def busy(self, traffic: Traffic, hosts: Sequence[int]) -> float | None:
        """Traffic over capacity of the fullest link, NICs of hosts included: what the network needs if nothing else
        limits it. None: a speed is unknown."""
        if self.is_assumed:
            return None
        out, into = [0.0] * traffic.num, [0.0] * traffic.num
        for edge in traffic.edges:
            out[edge.source] += edge.amount
            into[edge.target] += edge.amount
        nics = (max(out[place], into[place]) / self._speeds[host] for place, host in enumerate(hosts))
        return max([self.of(traffic, hosts).bottleneck, *nics])

    def of(self, traffic: Traffic, hosts: Sequence[int]) -> Cost:
        """Cost of an assignment. `hosts[place]` is the host of each place."""
        crossing, worst = 0.0, 0.0
        for level in range(self.num_levels):
            out: dict[int, float] = {}
            into: dict[int, float] = {}
            for edge in traffic.edges:
                one, other = self.levels[hosts[edge.source]][level], self.levels[hosts[edge.target]][level]
                if one != other:
                    out[one] = out.get(one, 0.0) + edge.amount
                    into[other] = into.get(other, 0.0) + edge.amount
                    crossing += edge.amount
            for amounts in (out, into):
                worst = max([worst, *(amount / self._capacity[level][group] for group, amount in amounts.items())])
        return Cost(worst, crossing)


def _capacities(graph: Graph, level: int) -> dict[int, float]:
    """Capacity out of each group of that level, in Gbit/s. If speeds are unknown: as much as its hosts send, one unit
    each, as in a network without oversubscription."""
    members: dict[int, list[int]] = {}
    for host, path in enumerate(graph.levels):
        members.setdefault(path[level], []).append(host)
    if any(cable.bps is None for cable in graph.cables) or not graph.level_names[level].startswith("joined"):
        return {group: float(len(hosts)) * _host_speed(graph) for group, hosts in members.items()}
    tier = int(graph.level_names[level].rsplit(" ", 1)[1])
    inside = graph.components(tier)
    found = dict.fromkeys(members, 0.0)
    for cable in graph.cables:
        one, other = inside[graph.index[cable.one.node]], inside[graph.index[cable.other.node]]
        if one != other:
            for group in {one, other} & found.keys():
                found[group] += (cable.bps or 0.0) / 1e9
    return {group: speed or float(len(members[group])) * _host_speed(graph) for group, speed in found.items()}


def _host_speed(graph: Graph) -> float:
    """Gbit/s of one host, if its speeds are known; else 1."""
    return _speed_of(graph, 0) if graph.num_hosts else 1.0


def _speed_of(graph: Graph, host: int) -> float:
    return sum((cable.bps or 0.0) / 1e9 for _, cable in graph.leaves_of(host)) or 1.0
