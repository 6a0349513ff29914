"""Chooses probe flows so that every link is crossed often enough, from more than one host.

A greedy cover picks flows until `least` of them cross each direction of each link, from two hosts if two can reach it.
"""

import heapq
import itertools
from collections.abc import Mapping, Sequence

import msgspec

from everstep.fabric.locate.observations import Link

Flow = tuple[str, str, int]  # from, to, source port


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    flows: tuple[Flow, ...]
    thin: tuple[Link, ...]  # links that the chosen flows cross too rarely
    num_links: int


def plan_probes(paths: Mapping[Flow, Sequence[str]], *, least: int = 3, most_per_host: int = 64) -> Coverage:
    """`paths`: for each possible flow, the nodes on its way to the peer."""
    links = {flow: [*itertools.pairwise(nodes)] for flow, nodes in paths.items()}
    picker = _Picker(links, least)
    # The worth of a flow only falls, so the best flow is the first one that still has the right rank in the heap.
    heap = [(*picker.rank(flow), order, flow) for order, flow in enumerate(links)]
    heapq.heapify(heap)
    chosen: list[Flow] = []
    while heap:
        *known, order, flow = heapq.heappop(heap)
        rank = picker.rank(flow)
        if rank[0] == 0 or picker.budget.get(flow[0], 0) >= most_per_host:
            continue
        if tuple(known) != rank:
            heapq.heappush(heap, (*rank, order, flow))
            continue
        picker.take(flow)
        chosen.append(flow)
    thin = sorted(set(picker.wanted) - _covered(chosen, links, least))
    return Coverage(flows=tuple(chosen), thin=tuple(thin), num_links=len(picker.wanted))


class _Picker:
    def __init__(self, links: Mapping[Flow, Sequence[Link]], least: int) -> None:
        self._links = links
        self.wanted = dict.fromkeys((link for its in links.values() for link in its), least)
        self._sources: dict[Link, set[str]] = {link: set() for link in self.wanted}
        self.budget: dict[str, int] = {}

    def rank(self, flow: Flow) -> tuple[int, int]:
        """Rank of a flow, smaller is better: what it adds, negated, then how many flows its host has."""
        worth = sum(
            (self.wanted[link] > 0) + (self.wanted[link] > 0 and flow[0] not in self._sources[link])
            for link in self._links[flow]
        )
        return -worth, self.budget.get(flow[0], 0)

    def take(self, flow: Flow) -> None:
        self.budget[flow[0]] = self.budget.get(flow[0], 0) + 1
        for link in self._links[flow]:
            self.wanted[link] = max(0, self.wanted[link] - 1)
            self._sources[link].add(flow[0])


def _covered(flows: Sequence[Flow], links: Mapping[Flow, Sequence[Link]], least: int) -> set[Link]:
    """Links that the flows cross often enough, counted again. A link that one host alone can reach needs one source."""
    counts, sources, possible = dict[Link, int](), dict[Link, set[str]](), dict[Link, set[str]]()
    for flow, its in links.items():
        for link in its:
            possible.setdefault(link, set()).add(flow[0])
    for flow in flows:
        for link in links[flow]:
            counts[link] = counts.get(link, 0) + 1
            sources.setdefault(link, set()).add(flow[0])
    return {
        link
        for link, number in counts.items()
        if number >= least and (len(sources[link]) >= 2 or len(possible[link]) < 2)
    }
