"""The best assignment, by branch and bound. Hosts with the same groups are interchangeable, so the search assigns
places to kinds of hosts. It is quick for a few hosts in a few groups; after `MAX_STEPS` it gives up."""

from collections.abc import Sequence

from everstep.fabric.placement.cost import Cost, Costs
from everstep.fabric.placement.traffic import Traffic

MAX_STEPS = 60_000


def best(costs: Costs, traffic: Traffic, free: Sequence[int], known: Cost) -> tuple[list[int] | None, bool]:
    """An assignment that is better than `known`, or None; and whether the search was complete."""
    kinds: dict[tuple[int, ...], list[int]] = {}
    for host in free:
        kinds.setdefault(costs.levels[host], []).append(host)
    search = _Search(costs, traffic, list(kinds.values()), known)
    search.place([], [0] * len(kinds))
    return search.found, search.steps < MAX_STEPS


class _Search:
    def __init__(self, costs: Costs, traffic: Traffic, kinds: list[list[int]], known: Cost) -> None:
        self._costs, self._traffic, self._kinds = costs, traffic, kinds
        self._best = known
        self.found: list[int] | None = None
        self.steps = 0
        self._until = [
            Traffic(num=traffic.num, edges=tuple(e for e in traffic.edges if max(e.source, e.target) < n), shape=())
            for n in range(traffic.num + 1)
        ]

    def place(self, hosts: list[int], used: list[int]) -> None:
        """Tries a host of each kind for the next place. More traffic never costs less, so a costly beginning is cut."""
        self.steps += 1
        if self.steps >= MAX_STEPS:
            return
        if not self._costs.of(self._until[len(hosts)], hosts).is_better_than(self._best):
            return
        if len(hosts) == self._traffic.num:
            self._best = self._costs.of(self._traffic, hosts)
            self.found = list(hosts)
            return
        for kind, members in enumerate(self._kinds):
            if used[kind] < len(members):
                used[kind] += 1
                self.place([*hosts, members[used[kind] - 1]], used)
                used[kind] -= 1
