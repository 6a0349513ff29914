"""Simulates one collective on one network: the pairs that send, their links, their rates and the total time.

Each rail is an independent ring. Transfers inside a host cost nothing. The connections of a pair either share the work,
each at its own rate, or get equal parts of every message, as some libraries do; then the slowest connection decides.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from everstep.fabric.flows.fair import fair_rates
from everstep.fabric.flows.network import Network
from everstep.fabric.flows.outcome import HotLink, Outcome
from everstep.fabric.flows.routes import Paths, Router, mixed
from everstep.fabric.topology.values import FabricError

Array = Any
MAX_FLOWS = 20_000_000
_HOT = 5


class Request(msgspec.Struct, frozen=True, kw_only=True):
    pattern: str = "all-reduce"
    routing: str = "ecmp"
    connections: int = 1
    is_split: bool = False
    num_bytes: float = 1e9  # per host
    latency_s: float = 0.0
    seed: int = 0
    same_hash: bool = False


def simulate(network: Network, order: Sequence[int], request: Request) -> Outcome:
    """`order`: numbers of the hosts, in the order of the ring. Raises FabricError."""
    if len(order) < 2:
        raise FabricError("simulate: one host sends nothing: it needs two at least")
    rails, left_out = _rails(network, order)
    if not rails:
        raise FabricError("simulate: no rail reaches all hosts. Leave hosts out, or repair a link")
    pairs = _pairs(len(order), request)
    out, into = _links_of(network, order, rails, pairs)
    num_pairs = len(out)
    if num_pairs * request.connections > MAX_FLOWS:
        raise FabricError(f"simulate: {num_pairs * request.connections} flows: at most {MAX_FLOWS}. Use fewer hosts")
    flows: Array = np.repeat(np.arange(num_pairs), request.connections)
    keys = mixed(np.arange(len(flows), dtype=np.uint64) + np.uint64(request.seed) * np.uint64(1 << 32))
    router = Router(network, seed=request.seed, same_hash=request.same_hash)
    paths = router.route(out[flows], into[flows], keys, request.routing)
    rates = fair_rates(network.capacity, paths.flow, paths.link, len(flows), weight=paths.weight)
    pair_rates = _pair_rates(rates, num_pairs, request)
    return _outcome(network, request, order, (rails, left_out), paths, rates, pair_rates, out)


def _rails(network: Network, order: Sequence[int]) -> tuple[list[int], list[int]]:
    """Rails on which every host has a NIC, and rails on which only some hosts have one."""
    counts: dict[int, int] = {}
    for host in order:
        for rail in network.rails_of(host):
            counts[rail] = counts.get(rail, 0) + 1
    whole = sorted(rail for rail, count in counts.items() if count == len(order))
    known = {nic.rail for host in network.graph.topology.hosts for nic in host.nics if nic.rail is not None}
    return whole, sorted((known | set(counts)) - set(whole))


def _pairs(num: int, request: Request) -> Array:
    """Pairs of sender and receiver, shape (pairs, 2), as positions in the order."""
    places = np.arange(num)
    if request.pattern == "all-reduce":
        return np.stack([places, np.roll(places, -1)], axis=1)
    if request.pattern == "permutation":
        generator = np.random.default_rng(request.seed)
        ring = generator.permutation(num)  # one cycle: no host sends to itself
        return np.stack([ring, np.roll(ring, -1)], axis=1)
    one, other = np.divmod(np.arange(num * num), num)
    return np.stack([one, other], axis=1)[one != other]


def _links_of(network: Network, order: Sequence[int], rails: Sequence[int], pairs: Array) -> tuple[Array, Array]:
    out: Array = np.empty((len(rails), len(order)), dtype=np.int64)
    for place, host in enumerate(order):
        by_rail = dict(zip(network.rails_of(host), network.nics[host], strict=True))
        out[:, place] = [by_rail[rail] for rail in rails]
    back = out ^ 1  # the same cable, in the other direction
    return out[:, pairs[:, 0]].ravel(), back[:, pairs[:, 1]].ravel()


def _pair_rates(rates: Array, num_pairs: int, request: Request) -> Array:
    table = rates.reshape(num_pairs, request.connections)
    return request.connections * table.min(axis=1) if request.is_split else table.sum(axis=1)


def _outcome(
    network: Network,
    request: Request,
    order: Sequence[int],
    rails: tuple[list[int], list[int]],
    paths: Paths,
    rates: Array,
    pair_rates: Array,
    out: Array,
) -> Outcome:
    used, left_out = rails
    line = network.capacity[out]
    fan_out = len(order) - 1 if request.pattern == "all-to-all" else 1  # flows that leave a NIC at once
    shares = pair_rates * fan_out / line
    between = (network.tail >= network.graph.num_hosts) & (network.head >= network.graph.num_hosts)
    load = np.bincount(paths.link, weights=rates[paths.flow] * paths.weight, minlength=len(network.capacity))
    counts = np.bincount(paths.link, minlength=len(network.capacity))
    hottest = [link for link in np.argsort(-counts * between)[:_HOT].tolist() if counts[link] and between[link]]
    return Outcome(
        source=network.graph.topology.source,
        pattern=request.pattern,
        routing=request.routing,
        connections=request.connections,
        is_split=request.is_split,
        num_hosts=len(order),
        num_flows=len(rates),
        rails_used=tuple(used),
        rails_left_out=tuple(left_out),
        mean=float(shares.mean()),
        slowest=float(shares.min()),
        p01=float(np.quantile(shares, 0.01)),
        seconds=_seconds(request, len(order), len(used), float(pair_rates.min()) * fan_out),
        ideal_s=_seconds(request, len(order), len(used) + len(left_out), float(line.min())),
        busy_links=int(((counts > 0) & between).sum()),
        num_links=int(between.sum()),
        hot=tuple(
            HotLink(label=network.label(link), flows=int(counts[link]), load=float(load[link] / network.capacity[link]))
            for link in hottest
        ),
    )


def _seconds(request: Request, num_hosts: int, num_rails: int, bps: float) -> float:
    part = request.num_bytes / num_rails
    if request.pattern == "all-reduce":
        return ring_all_reduce_s(num_hosts, part, bps, request.latency_s)
    if request.pattern == "all-to-all":
        return all_to_all_s(num_hosts, part, bps, request.latency_s)
    return request.latency_s + part * 8 / bps


def ring_all_reduce_s(ranks: int, num_bytes: float, bps: float, latency_s: float = 0.0) -> float:
    if ranks < 2:
        return 0.0
    return 2 * (ranks - 1) * latency_s + 2 * (ranks - 1) / ranks * num_bytes * 8 / bps


def all_to_all_s(ranks: int, num_bytes: float, bps: float, latency_s: float = 0.0) -> float:
    """Seconds of an all-to-all. `num_bytes`: the buffer of each rank; every rank gets one share of it."""
    if ranks < 2:
        return 0.0
    return (ranks - 1) * latency_s + (ranks - 1) / ranks * num_bytes * 8 / bps
