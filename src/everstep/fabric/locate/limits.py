"""Links that are judged, and the smallest loss that would have been seen on each. Unknown is not healthy.

Losses on a path over a full link are no evidence. So if the packets of a link crossed full links (itself or others),
the link may be broken without a trace. Such a link is not judged, and the reason is given. Only a loss above that of a
queue is still found there: a dead cable. If both ports of a link counted its packets, the counters judge it.
"""

import functools
import math
from collections.abc import Collection, Iterable, Mapping

import msgspec

from everstep.fabric.locate.likelihood import Row, gain_of
from everstep.fabric.locate.loads import Load
from everstep.fabric.locate.observations import Link, Seen
from everstep.fabric.locate.wire import LEAST

MIN_BAD = 3
MIN_GAIN = 12.0
"""Least gain in log likelihood: a chance of about one in 100,000 for one of a few hundred hypotheses."""
JUDGED = 0.02
"""A link is judged if a loss of this share would have been seen."""
_SURE = 0.95
_MANY = 200


class Unjudged(msgspec.Struct, frozen=True, kw_only=True):
    """A link that may lose packets without being named as a fault."""

    link: str  # "leaf0 > spine1"
    why: str  # "full", "beside full" (another link of its paths is), "no probes"
    packets: int  # over it, while no link of their path was full
    packets_beside: int  # over it, while it or another link of their path was full
    smallest_rate: float  # smallest loss seen with `packets`; 1: none. A loss above a queue's is seen anyway
    full: tuple[str, ...] = ()  # the full links: itself first, then those that most of its packets crossed
    packets_wanted: int = 0  # further packets, on paths without a full link, that it needs to be judged
    counts_damage: bool = False  # its receiving port counts damaged packets: any would have proven a fault


def judged(
    rows: Iterable[tuple[Seen, frozenset[Link]]], loads: Mapping[Link, Load], links: Collection[Link], noise: float
) -> tuple[tuple[Unjudged, ...], float]:
    """Links that are not judged, and the loss that would have been seen on every other link. `rows`: observations, each
    with the links that were full meanwhile. `links`: further links of the network."""
    tallies = {link: _Tally() for link in links}
    for seen, full in rows:
        for link in seen.links:
            tallies.setdefault(link, _Tally()).add(seen.sent, full)
    found, smallest = list[Unjudged](), 0.0
    for link, tally in sorted(tallies.items()):
        rate = min(smallest_seen(tally.packets, noise), _counted(loads.get(link)))
        if (tally.packets and not tally.beside) or rate <= JUDGED:
            smallest = max(smallest, rate)
        else:
            found.append(_unjudged(link, tally, rate, loads, noise))
    return tuple(found), smallest or 1.0


def _counted(load: Load | None) -> float:
    """The loss that the counters of its ports would have shown; 1: none."""
    wire = None if load is None else load.wire
    if wire is None:
        return 1.0
    return LEAST if wire.is_lossy else min(1.0, max(LEAST, wire.most))


class _Tally:
    """Packets on one link."""

    def __init__(self) -> None:
        self.packets = self.packets_beside = 0
        self.beside: dict[Link, int] = {}  # full link -> packets that crossed both meanwhile

    def add(self, sent: int, full: frozenset[Link]) -> None:
        if full:
            self.packets_beside += sent
        else:
            self.packets += sent
        for link in full:
            self.beside[link] = self.beside.get(link, 0) + sent


def _unjudged(link: Link, tally: _Tally, rate: float, loads: Mapping[Link, Load], noise: float) -> Unjudged:
    full = sorted(tally.beside, key=lambda other: (other != link, -tally.beside[other], other))
    known = loads.get(link)
    return Unjudged(
        link=" > ".join(link),
        why=("full" if link in tally.beside else "beside full") if full else "no probes",
        packets=tally.packets,
        packets_beside=tally.packets_beside,
        smallest_rate=rate,
        full=tuple(" > ".join(other) for other in full),
        packets_wanted=packets_judged(noise) - tally.packets,
        counts_damage=known is not None and known.errors is not None,
    )


@functools.lru_cache(maxsize=4096)
def packets_judged(noise: float) -> int:
    """The fewest packets with which a link is judged."""
    packets = MIN_BAD
    while smallest_seen(packets, noise) > JUDGED:
        packets += 1
    return packets


@functools.lru_cache(maxsize=4096)
def smallest_seen(packets: int, noise: float) -> float:
    """The smallest loss rate for which a fault is named in 19 of 20 windows with this many packets; 1: none."""
    return min(1.0, _expected_for(_least_bad(packets, noise)) / packets) if packets else 1.0


def _least_bad(packets: int, noise: float) -> int:
    """The fewest lost packets that make a fault so much likelier than noise that it is named."""
    fewest, most = max(MIN_BAD, math.ceil(noise * packets)), packets
    while fewest < most:
        bad = (fewest + most) // 2
        is_named = gain_of([Row(packets, bad, 1.0 - noise, 1.0 - noise)], bad / packets) >= MIN_GAIN
        fewest, most = (fewest, bad) if is_named else (bad + 1, most)
    return fewest


def _expected_for(least: int) -> float:
    """Mean of a Poisson distribution with 19 of 20 draws at `least` or above; a normal one is used above `_MANY`."""
    low, high = float(least), 3.0 * least + 10
    for _ in range(40):
        mean = (low + high) / 2
        low, high = (low, mean) if _share_at_least(least, mean) >= _SURE else (mean, high)
    return high


def _share_at_least(least: int, mean: float) -> float:
    if least > _MANY:
        return 0.5 * math.erfc((least - 0.5 - mean) / math.sqrt(2.0 * mean))
    return 1.0 - sum(math.exp(count * math.log(mean) - mean - math.lgamma(count + 1)) for count in range(least))
