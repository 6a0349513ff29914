"""Traffic between the nodes of a job: rings of data parallelism, neighbours of pipeline parallelism, all-to-all of
experts. Nodes are places here, not hosts: the placement gives each place a host.

Places follow Megatron's order: tensor parallel fastest, then experts, data and pipeline. If tensor parallelism fits
into a host, the host sends nothing for it.
"""

import itertools
import math
from collections.abc import Iterator

import msgspec

from everstep.fabric.topology.values import FabricError


class Edge(msgspec.Struct, frozen=True):
    source: int
    target: int
    amount: float


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    num: int  # places
    edges: tuple[Edge, ...]
    shape: tuple[int, ...]  # dimensions of the places, fastest first: (dp, pp)


class Groups(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of parallel groups in ranks, and the amount that one rank sends per step, in bytes or any other unit."""

    tp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1
    tp_amount: float = 560.0  # published for 175 B parameters, TP8 PP8 DP512, in MB a step
    ep_amount: float = 500.0
    dp_amount: float = 5500.0
    pp_amount: float = 6.0


def ring(num: int, amount: float = 1.0) -> Traffic:
    return Traffic(num=num, edges=tuple(_ring(list(range(num)), amount)), shape=(num,))


def traffic_of(groups: Groups, chips_per_host: int) -> Traffic:
    """Traffic between hosts of `chips_per_host` ranks each. Raises FabricError if ranks do not fill hosts."""
    ranks = groups.tp * groups.ep * groups.dp * groups.pp
    if ranks % chips_per_host:
        raise FabricError(f"groups of {ranks} ranks do not fill hosts of {chips_per_host} chips")
    num = ranks // chips_per_host
    amounts: dict[tuple[int, int], float] = {}
    strides, stride = {}, 1
    for name, size in (("tp", groups.tp), ("ep", groups.ep), ("dp", groups.dp), ("pp", groups.pp)):
        strides[name] = stride
        stride *= size
    for name, size, amount in (
        ("tp", groups.tp, groups.tp_amount),
        ("ep", groups.ep, groups.ep_amount),
        ("dp", groups.dp, groups.dp_amount),
        ("pp", groups.pp, groups.pp_amount),
    ):
        for one, other, part in _between(name, size, amount, strides[name], ranks):
            hosts = one // chips_per_host, other // chips_per_host
            if hosts[0] != hosts[1]:
                amounts[hosts] = amounts.get(hosts, 0.0) + part
    edges = tuple(Edge(one, other, amount) for (one, other), amount in sorted(amounts.items()))
    return Traffic(num=num, edges=edges, shape=_shape(groups, chips_per_host, num))


def _shape(groups: Groups, chips_per_host: int, num: int) -> tuple[int, ...]:
    """Sizes of the dimensions that remain between hosts."""
    left, shape = chips_per_host, []
    for size in (groups.tp, groups.ep, groups.dp, groups.pp):
        inside = math.gcd(size, left)
        left //= inside
        if size // inside > 1:
            shape.append(size // inside)
    return tuple(shape) if math.prod(shape) == num else (num,)


def _between(name: str, size: int, amount: float, stride: int, ranks: int) -> Iterator[tuple[int, int, float]]:
    """Pairs of ranks in groups of one kind, and the amount from the first to the second."""
    if size == 1:
        return
    for first in range(ranks):
        if first // stride % size:
            continue
        members = [first + stride * each for each in range(size)]
        if name == "ep":
            for one in members:
                yield from ((one, other, amount / size) for other in members if other != one)
        elif name == "pp":
            for one, other in itertools.pairwise(members):
                yield one, other, amount
                yield other, one, amount
        else:
            yield from ((edge.source, edge.target, edge.amount) for edge in _ring(members, amount))


def _ring(members: list[int], amount: float) -> Iterator[Edge]:
    """An all-reduce of `amount`: each member sends 2(n-1)/n of it to the next."""
    if len(members) > 1:
        part = 2 * (len(members) - 1) / len(members) * amount
        yield from (Edge(one, other, part) for one, other in zip(members, [*members[1:], members[0]], strict=True))
