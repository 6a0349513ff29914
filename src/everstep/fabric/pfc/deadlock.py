"""Deadlock: the graph of buffers that wait for each other, and its cycles.

A buffer is the queue of one priority behind one link, at the switch that the link enters. It waits for the buffer
behind the next link of every route through it: while the next buffer is full, it sends a pause, and this one cannot
drain. Once all buffers of a cycle of waits are full, the cycle can stand still for ever. A deadlock needs such a cycle,
and traffic that fills all its buffers at once. Routes that go up, then down, and never up again have no cycle.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from everstep.fabric.pfc.routes import ANY, Route
from everstep.fabric.topology.values import FabricError

Buffer = tuple[str, str, int]  # the link from .. to .., priority
MAX_CYCLES = 1000


class Cycle(msgspec.Struct, frozen=True, kw_only=True):
    buffers: tuple[Buffer, ...]
    routes: tuple[Route, ...]  # one for each wait, in the same order


class Deadlocks(msgspec.Struct, frozen=True, kw_only=True):
    num_buffers: int
    num_waits: int
    cycles: tuple[Cycle, ...]
    is_complete: bool  # False: there are more cycles than are listed
    bounces: tuple[tuple[Route, str], ...]  # routes that go down and up again, and where


def find_deadlocks(routes: Sequence[Route], tiers: Mapping[str, int], *, most: int = MAX_CYCLES) -> Deadlocks:
    """Find at most `most` cycles. `tiers`: tiers of the nodes, if known; only `bounces` needs them."""
    waits = buffer_graph(routes)
    cycles = list(itertools.islice(cycles_of(waits), most + 1))
    return Deadlocks(
        num_buffers=len({buffer for wait in waits for buffer in wait}),
        num_waits=len(waits),
        cycles=tuple(_closed(cycle, waits) for cycle in cycles[:most]),
        is_complete=len(cycles) <= most,
        bounces=tuple((route, node) for route in routes if (node := bounce(route, tiers)) is not None),
    )


def buffer_graph(routes: Iterable[Route]) -> dict[tuple[Buffer, Buffer], Route]:
    """Pairs of a buffer and the one it waits for, with the first route that causes the wait. No buffer waits for the
    last node: it takes all packets."""
    waits: dict[tuple[Buffer, Buffer], Route] = {}
    whole = list(routes)
    priorities = {route.priority for route in whole if route.priority != ANY} or {0}
    for route in whole:
        for priority in priorities if route.priority == ANY else {route.priority}:
            buffers = [(one, other, priority) for one, other in itertools.pairwise(route.nodes)]
            for wait in itertools.pairwise(buffers[:-1]):
                waits.setdefault(wait, route)
    return waits


def cycles_of(waits: Iterable[tuple[Buffer, Buffer]]) -> Iterator[list[Buffer]]:
    """Every elementary cycle once. Raises FabricError if networkx is not installed."""
    try:
        import networkx
    except ImportError:
        raise FabricError("deadlock: needs networkx: pip install 'everstep[fabric]'") from None
    yield from networkx.simple_cycles(networkx.DiGraph(list(waits)))


def _closed(cycle: Sequence[Buffer], waits: Mapping[tuple[Buffer, Buffer], Route]) -> Cycle:
    start = cycle.index(min(cycle))
    buffers = (*cycle[start:], *cycle[:start])
    pairs = zip(buffers, (*buffers[1:], buffers[0]), strict=True)
    return Cycle(buffers=buffers, routes=tuple(waits[pair] for pair in pairs))


def bounce(route: Route, tiers: Mapping[str, int]) -> str | None:
    """The node at which a route goes up again after it went down. None: there is none, or the tiers are unknown."""
    descended = False
    for one, other in itertools.pairwise(route.nodes):
        if one not in tiers or other not in tiers:
            return None
        if descended and tiers[other] > tiers[one]:
            return one
        descended = descended or tiers[other] < tiers[one]
    return None
