"""Traffic of jobs on each link in each second, predicted from their collectives, beside the counters of ports.

Paths of equal length share the predicted traffic: only the switch knows which one it takes. So if two such links differ
from their predictions by the same amount, one up and one down, hashes collided.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from everstep.fabric.flows.network import Array, Network
from everstep.fabric.flows.routes import Router
from everstep.fabric.locate.observations import Counted
from everstep.fabric.locate.ports import is_impossible
from everstep.fabric.topology.values import FabricError
from everstep.fabric.traffic.matrix import Amounts, Operation, Span, sends
from everstep.fabric.traffic.pictured import LinkTraffic, Picture, Second, Share

HOT = 0.7
"""Share of the capacity, in the fullest second. Collectives wait for the slowest flow long before a link is full."""


def picture(
    network: Network, operations: Sequence[Operation], counted: Iterable[Counted], seconds: range, *, is_tree: bool
) -> Picture:
    """The picture of `seconds` (since the epoch). Raises FabricError."""
    router, unknown = Router(network), list[tuple[str, str, str]]()
    predicted: Array = np.zeros((len(network.tail), len(seconds)))
    by_group: dict[int, dict[tuple[str, str], float]] = {}  # link -> job and group -> bit in all seconds
    is_known: Array = np.zeros(len(seconds), dtype=bool)
    for each in operations:
        amounts = sends(each.op, each.num_bytes, each.hosts, is_tree=is_tree)
        if amounts is None:
            unknown.append((each.job, each.group, each.op))
            continue
        rates, covered = _rates(each.spans, seconds)
        is_known |= covered
        bits = _bits_on_links(network, router, amounts)
        (links,) = np.nonzero(bits)
        predicted[links] += np.outer(bits[links], rates)
        for link in links.tolist():
            shares, key = by_group.setdefault(link, {}), (each.job, each.group)
            shares[key] = shares.get(key, 0.0) + float(bits[link] * rates.sum())
    measured = _measured(network, counted, seconds)
    predicted[:, ~is_known] = math.nan
    num_known = max(1, int(is_known.sum()))
    found = [
        _link(network, link, predicted[link], measured[link], _shares(by_group.get(link, {}), num_known), seconds)
        for link in range(len(network.tail))
    ]
    found.sort(key=lambda each: (-(each.peak or 0.0), each.link))
    return Picture(links=tuple(found), unknown=tuple(dict.fromkeys(unknown)))


def _bits_on_links(network: Network, router: Router, amounts: Amounts) -> Array:
    """Bits of one operation on each link, shape (links,). Hosts with several NICs send equal parts on each rail that
    both have."""
    outs, intos, bits = list[int](), list[int](), list[float]()
    for (one, other), amount in amounts.items():
        pairs = _rails(network, one, other)
        outs += [out for out, _ in pairs]
        intos += [into for _, into in pairs]
        bits += [8 * amount / len(pairs)] * len(pairs)
    if not outs:
        return np.zeros(len(network.tail))
    paths = router.route(np.array(outs), np.array(intos), np.array([]), "spray")
    return np.bincount(paths.link, weights=np.array(bits)[paths.flow] * paths.weight, minlength=len(network.tail))


def _rails(network: Network, one: str, other: str) -> list[tuple[int, int]]:
    """For each common rail, the link that leaves `one` and the link that enters `other`."""
    found = []
    for name in (one, other):
        host = network.graph.index.get(name)
        if host is None or not network.graph.is_host(host):
            raise FabricError(f"{network.graph.topology.source}: unknown host: {name}: a job's rank is there")
        found.append(dict(zip(network.rails_of(host), network.nics[host], strict=True)))
    pairs = [(found[0][rail], found[1][rail] ^ 1) for rail in found[0] if rail in found[1]]
    if not pairs:
        raise FabricError(f"{network.graph.topology.source}: {one} and {other} have no NIC on the same rail")
    return pairs


def _rates(spans: Iterable[Span], seconds: range) -> tuple[Array, Array]:
    """Operations in each second, and which seconds are known, both of shape (seconds,)."""
    rates: Array = np.zeros(len(seconds))
    covered: Array = np.zeros(len(seconds))
    for span in spans:
        for place, part in _parts(span.begin, span.end, seconds):
            rates[place] += span.per_s * part
            covered[place] += part
    return rates, covered > 0.5


def _parts(begin: float, end: float, seconds: range) -> Iterator[tuple[int, float]]:
    """The seconds that this span touches, as positions, and the covered share of each."""
    first, last = max(math.floor(begin), seconds.start), min(math.ceil(end), seconds.stop)
    for at in range(first, last):
        part = min(end, at + 1) - max(begin, at)
        if part > 0:
            yield at - seconds.start, part


def _measured(network: Network, counted: Iterable[Counted], seconds: range) -> Array:
    """Bit/s, shape (links, seconds): from the sending port, else from the receiving one. NaN: unknown."""
    ends: dict[tuple[str, str], tuple[int, int]] = {}  # port -> the link that leaves it, the one that enters
    for number, cable in enumerate(network.graph.cables):
        ends[cable.one.node, cable.one.name] = (2 * number, 2 * number + 1)
        ends[cable.other.node, cable.other.name] = (2 * number + 1, 2 * number)
    shape = (2, len(network.tail), len(seconds))
    bits, covered = np.zeros(shape), np.zeros(shape)
    for each in counted:
        links = ends.get((each.node, each.nic))
        if links is None or each.at is None or each.seconds <= 0:
            continue
        for side, name in enumerate(("tx_bytes", "rx_bytes")):
            grown = each.grown.get(name)
            if grown is None or is_impossible(grown, each.seconds, float(network.capacity[links[side]])):
                continue
            for place, part in _parts(each.at - each.seconds, each.at, seconds):
                bits[side, links[side], place] += 8 * grown / each.seconds * part
                covered[side, links[side], place] += part
    rates = np.divide(bits, covered, out=np.full(shape, math.nan), where=covered > 0.5)
    return np.where(np.isnan(rates[0]), rates[1], rates[0])


def _shares(of: Mapping[tuple[str, str], float], num_seconds: int) -> tuple[Share, ...]:
    shares = [Share(job=job, group=group, bps=bits / num_seconds) for (job, group), bits in of.items() if bits]
    return tuple(sorted(shares, key=lambda share: -share.bps))


def _link(
    network: Network, link: int, predicted: Array, measured: Array, jobs: tuple[Share, ...], seconds: range
) -> LinkTraffic:
    both = ~np.isnan(predicted) & ~np.isnan(measured)
    over = both if both.any() else np.ones(len(predicted), dtype=bool)
    capacity = float(network.capacity[link])
    counted_most = _most(measured)
    most = _most(predicted) if counted_most is None else counted_most
    return LinkTraffic(
        link=network.label(link),
        capacity_bps=capacity,
        predicted_bps=_mean(predicted[over]),
        measured_bps=_mean(measured[over]),
        peak=None if most is None else most / capacity,
        is_hot=most is not None and most >= HOT * capacity,
        jobs=jobs,
        seconds=tuple(
            Second(at=at, predicted_bps=_number(predicted[place]), measured_bps=_number(measured[place]))
            for place, at in enumerate(seconds)
        ),
    )


def _mean(values: Array) -> float | None:
    return None if np.isnan(values).all() else float(np.nanmean(values))


def _most(values: Array) -> float | None:
    return None if np.isnan(values).all() else float(np.nanmax(values))


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
