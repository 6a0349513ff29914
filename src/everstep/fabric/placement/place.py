"""Places a job: tries several sets of hosts, several orders and exchanges of two hosts, and takes the best. The choice
of Slurm's tree is one candidate, so the result is never worse than that."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from everstep.fabric.placement import exact, slurm_tree
from everstep.fabric.placement.cost import Cost, Costs
from everstep.fabric.placement.pick import candidates
from everstep.fabric.placement.traffic import Traffic
from everstep.fabric.topology.graph import Graph
from everstep.fabric.topology.values import FabricError

MAX_EXACT = 12
_EXCHANGES = 5_000_000
"""Edges to look at while exchanging hosts: two or three seconds."""
_WIDTHS = 3
"""Pools of wide groups to try for each level."""
_EXCHANGED = 64
"""A placement of a larger job that is at the bound is not improved further."""


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    hosts: tuple[str, ...]  # one per place, in order
    cost: Cost
    slurm: Cost  # cost of the choice of Slurm's tree, in its order
    speed_up: float | None  # of the network, against Slurm's choice; None: a speed is unknown
    bound: float  # no placement on the free hosts has a smaller bottleneck
    is_optimal: bool  # proven by search or by the bound
    is_assumed: bool  # a speed is unknown: computed without oversubscription


def place(graph: Graph, traffic: Traffic, free: Sequence[int]) -> Placement:
    """Place a job on the `free` hosts (numbers of the graph). Raises FabricError."""
    if traffic.num < 1 or len(free) < traffic.num:
        raise FabricError(f"placement: {traffic.num} hosts are wanted, {len(free)} are free")
    graph.require_connected([graph.names[host] for host in free])
    costs = Costs(graph)
    usual = slurm_tree.pick(graph, free, traffic.num)
    slurm = costs.of(traffic, usual)
    found, cost = usual, slurm
    sets = itertools.chain([usual], *(_sets(graph, traffic, pool) for pool in _pools(costs, traffic.num, free)))
    for hosts in _assignments(graph, traffic, sets):
        its = costs.of(traffic, hosts)
        if its.is_better_than(cost):
            found, cost = hosts, its
    bound = _bound(costs, traffic, free)
    if traffic.num <= _EXCHANGED or cost.bottleneck > bound * (1 + 1e-9):
        found, cost = _exchange(costs, traffic, found, cost, free)
    is_optimal = cost.crossing == 0
    if not is_optimal and traffic.num <= MAX_EXACT:
        better, is_optimal = exact.best(costs, traffic, free, cost)
        if better is not None:
            found, cost = better, costs.of(traffic, better)
    return Placement(
        hosts=tuple(graph.names[host] for host in found),
        cost=cost,
        slurm=slurm,
        speed_up=_speed_up(costs, traffic, usual, found),
        bound=bound,
        is_optimal=is_optimal or cost.bottleneck <= bound * (1 + 1e-9),
        is_assumed=costs.is_assumed,
    )


def _speed_up(costs: Costs, traffic: Traffic, usual: Sequence[int], found: Sequence[int]) -> float | None:
    before, now = costs.busy(traffic, usual), costs.busy(traffic, found)
    return before / now if before is not None and now else None


def _pools(costs: Costs, num: int, free: Sequence[int]) -> Iterator[Sequence[int]]:
    """All free hosts; then, for each level, the hosts in groups with wide ways out: a narrow way fills first."""
    yield free
    for level in range(costs.num_levels):
        width = {host: costs.capacity(level, costs.levels[host][level]) for host in free}
        widths = sorted(set(width.values()), reverse=True)
        pools = ([host for host in free if width[host] >= least] for least in widths[:-1])
        yield from itertools.islice((pool for pool in pools if len(pool) >= num), _WIDTHS)


def _sets(graph: Graph, traffic: Traffic, free: Sequence[int]) -> Iterator[list[int]]:
    units = [math.prod(traffic.shape[:depth]) for depth in range(1, len(traffic.shape) + 1)]
    return candidates(graph, free, traffic.num, [*units, *traffic.shape])


def _assignments(graph: Graph, traffic: Traffic, sets: Iterable[list[int]]) -> Iterator[list[int]]:
    orders = list(_orders(traffic))
    seen: set[tuple[int, ...]] = set()
    for chosen in sets:
        for ordered in _sorted(graph, chosen):
            if tuple(ordered) in seen:
                continue
            seen.add(tuple(ordered))
            for order in orders:
                hosts = [0] * traffic.num
                for place_, host in zip(order, ordered, strict=True):
                    hosts[place_] = host
                yield hosts


def _sorted(graph: Graph, chosen: Sequence[int]) -> Iterator[list[int]]:
    """The hosts of a group side by side, at every level: large groups first, then small groups first."""
    for sign in (-1, 1):
        sizes: list[dict[int, int]] = []
        for level in range(len(graph.level_names)):
            counts: dict[int, int] = {}
            for host in chosen:
                counts[graph.levels[host][level]] = counts.get(graph.levels[host][level], 0) + 1
            sizes.append(counts)
        keys = {
            host: tuple(
                (sign * sizes[level][group], group) for level, group in reversed(list(enumerate(graph.levels[host])))
            )
            for host in chosen
        }
        yield sorted(chosen, key=lambda host: (keys[host], host))


def _orders(traffic: Traffic) -> Iterator[list[int]]:
    """The places in each order of the dimensions: the fastest dimension gets neighbouring hosts."""
    strides = [math.prod(traffic.shape[:depth]) for depth in range(len(traffic.shape))]
    for axes in itertools.permutations(range(len(traffic.shape))):
        ranges = [range(traffic.shape[axis]) for axis in axes]
        yield [
            sum(index * strides[axis] for index, axis in zip(indices, axes, strict=True))
            for indices in itertools.product(*ranges)
        ]


def _exchange(
    costs: Costs, traffic: Traffic, hosts: list[int], cost: Cost, free: Sequence[int]
) -> tuple[list[int], Cost]:
    """Exchanges two places, or a place and a free host, while that helps and the budget lasts."""
    budget = _EXCHANGES // max(1, len(traffic.edges) * costs.num_levels * 8)
    spare = [host for host in free if host not in set(hosts)]
    improved = cost.crossing > 0
    while improved:
        improved = False
        pool = [*hosts, *spare]
        for one, other in itertools.product(range(traffic.num), range(len(pool))):
            if one >= other or costs.levels[pool[one]] == costs.levels[pool[other]]:
                continue
            budget -= 1
            if budget < 0:
                return hosts, cost
            pool[one], pool[other] = pool[other], pool[one]
            its = costs.of(traffic, pool)
            if its.is_better_than(cost):
                cost, improved = its, True
            else:
                pool[one], pool[other] = pool[other], pool[one]
        hosts, spare = pool[: traffic.num], pool[traffic.num :]
    return hosts, cost


def _bound(costs: Costs, traffic: Traffic, free: Sequence[int]) -> float:
    """Lower bound of the bottleneck. If no group of a level holds the job, at least the smallest edge leaves or enters
    each group that the job touches. At best, these are the widest groups."""
    if not _is_connected(traffic):
        return 0.0
    smallest = min((edge.amount for edge in traffic.edges), default=0.0)
    bound = 0.0
    for level in range(costs.num_levels):
        counts: dict[int, int] = {}
        for host in free:
            counts[costs.levels[host][level]] = counts.get(costs.levels[host][level], 0) + 1
        if max(counts.values()) >= traffic.num:
            continue
        held = 0
        for group in sorted(counts, key=lambda each: -costs.capacity(level, each)):
            held += counts[group]
            if held >= traffic.num:
                bound = max(bound, smallest / costs.capacity(level, group))
                break
    return bound


def _is_connected(traffic: Traffic) -> bool:
    near: dict[int, list[int]] = {}
    for edge in traffic.edges:
        near.setdefault(edge.source, []).append(edge.target)
        near.setdefault(edge.target, []).append(edge.source)
    seen, todo = {0}, [0]
    while todo:
        for other in near.get(todo.pop(), []):
            if other not in seen:
                seen.add(other)
                todo.append(other)
    return len(seen) == traffic.num
