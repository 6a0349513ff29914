"""The choice of Slurm's topology/tree plugin, for comparison: the smallest switch that holds the job; in it the leaf
that fits best, else the largest, and so on. Nodes are then in the order of the configuration."""

from collections.abc import Sequence

from everstep.fabric.topology.graph import Graph


def pick(graph: Graph, free: Sequence[int], num: int) -> list[int]:
    """Numbers of the chosen hosts; empty if there are not enough."""
    if len(free) < num:
        return []
    inside = _smallest(graph, free, num)
    leaves: dict[int, list[int]] = {}
    level = _leaf_level(graph)
    for host in inside:
        leaves.setdefault(graph.levels[host][level] if graph.levels[host] else 0, []).append(host)
    chosen: list[int] = []
    while len(chosen) < num:
        left = num - len(chosen)
        fitting = [group for group, hosts in leaves.items() if len(hosts) >= left]
        group = (
            min(fitting, key=lambda each: len(leaves[each]))
            if fitting
            else max(leaves, key=lambda each: len(leaves[each]))
        )
        chosen += leaves.pop(group)[:left]
    return sorted(chosen)


def _leaf_level(graph: Graph) -> int:
    return next((level for level, name in enumerate(graph.level_names) if name == "joined by tier 1"), 0)


def _smallest(graph: Graph, free: Sequence[int], num: int) -> list[int]:
    """Free hosts of the lowest group with enough of them; of several such groups, the one with the fewest left over."""
    for level in range(_leaf_level(graph), len(graph.level_names)):
        groups: dict[int, list[int]] = {}
        for host in free:
            groups.setdefault(graph.levels[host][level], []).append(host)
        enough = [hosts for hosts in groups.values() if len(hosts) >= num]
        if enough:
            return min(enough, key=len)
    return list(free)
