"""Candidate sets of hosts: close together, in few groups, in groups that hold whole rings."""

from collections.abc import Callable, Iterator, Sequence

from everstep.fabric.topology.graph import Graph


def candidates(graph: Graph, free: Sequence[int], num: int, units: Sequence[int]) -> Iterator[list[int]]:
    """`units`: sizes of parallel groups, in hosts; for each size, a set takes multiples of it from every group. Sets
    use few pods and then few leaves, or few leaves of any pods."""
    depth = len(graph.level_names)
    for unit in dict.fromkeys([1, *units]):
        for level in range(depth + 1):
            groups = _groups(graph, free, level) if level < depth else [list(free)]
            enough = [hosts for hosts in groups if len(hosts) >= num]
            for hosts in sorted(enough, key=len)[:2]:
                for below in range(level - 1, -1, -1) if level else [-1]:
                    yield _fill(graph, hosts, num, below, unit)
            if enough:
                break


def _groups(graph: Graph, hosts: Sequence[int], level: int) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for host in hosts:
        found.setdefault(graph.levels[host][level], []).append(host)
    return list(found.values())


def _fill(graph: Graph, hosts: list[int], num: int, level: int, unit: int) -> list[int]:
    """`num` of these hosts, from few groups of that level: large groups first, the last hosts from the group that fits
    most tightly."""
    if level < 0 or num == len(hosts):
        return hosts[:num]
    groups = _groups(graph, hosts, level)
    chosen: list[int] = []
    whole: Callable[[list[int]], int] = lambda group: len(group) // unit * unit  # noqa: E731
    for size in (whole, len):
        groups.sort(key=size)
        while len(chosen) < num and groups and size(groups[-1]) > 0:
            left = num - len(chosen)
            tight = next((place for place, group in enumerate(groups) if size(group) >= left), len(groups) - 1)
            group = groups.pop(tight)
            take = min(left, size(group))
            chosen += _fill(graph, group, take, level - 1, unit)
            if take < len(group):
                used = set(chosen)
                groups.append([host for host in group if host not in used])
                groups.sort(key=size)
    return chosen
