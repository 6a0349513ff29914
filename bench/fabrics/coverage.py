"""Which probes to send so that every link is crossed often enough, from more than one host: computed, not hoped.

Where paths are known, a greedy cover picks flows until each direction of each link has `least` of them from two hosts.
Where they are not, the number of random source ports follows from how many equal paths there are.
"""

import itertools
from collections.abc import Mapping, Sequence

import msgspec

from everstep.fabric.locate.observations import Link

Flow = tuple[str, str, int]  # from, to, source port


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    flows: tuple[Flow, ...]
    thin: tuple[Link, ...]  # links that no choice of these flows crosses often enough
    num_links: int


def plan_probes(paths: Mapping[Flow, Sequence[str]], *, least: int = 3, most_per_host: int = 64) -> Coverage:
    """`paths`: nodes that each possible flow crosses."""
    links = {flow: [*itertools.pairwise(nodes)] for flow, nodes in paths.items()}
    wanted = dict.fromkeys((link for its in links.values() for link in its), least)
    sources: dict[Link, set[str]] = {link: set() for link in wanted}
    chosen: list[Flow] = []
    budget: dict[str, int] = {}
    left = dict(links)
    while left and any(wanted.values()):
        flow = max(left, key=lambda each: (_worth(links[each], wanted, sources, each[0]), -budget.get(each[0], 0)))
        if _worth(links[flow], wanted, sources, flow[0]) == 0:
            break
        del left[flow]
        if budget.get(flow[0], 0) >= most_per_host:
            continue
        budget[flow[0]] = budget.get(flow[0], 0) + 1
        chosen.append(flow)
        for link in links[flow]:
            wanted[link] = max(0, wanted[link] - 1)
            sources[link].add(flow[0])
    thin = sorted(link for link in wanted if not is_covered(link, chosen, links, least))
    return Coverage(flows=tuple(chosen), thin=tuple(thin), num_links=len(wanted))


def _worth(links: Sequence[Link], wanted: Mapping[Link, int], sources: Mapping[Link, set[str]], host: str) -> int:
    return sum((wanted[link] > 0) + (wanted[link] > 0 and host not in sources[link]) for link in links)


def is_covered(link: Link, flows: Sequence[Flow], links: Mapping[Flow, Sequence[Link]], least: int) -> bool:
    """Checked anew from the flows. The link of one host has one source, whatever is chosen."""
    crossing = [flow for flow in flows if link in links[flow]]
    possible = {flow[0] for flow, its in links.items() if link in its}
    return len(crossing) >= least and (len({flow[0] for flow in crossing}) >= 2 or len(possible) < 2)
