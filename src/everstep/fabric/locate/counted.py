"""Cables that lose packets according to the counters of their two ports, checked against the probes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from everstep.fabric.locate.limits import MIN_GAIN
from everstep.fabric.locate.loads import Load
from everstep.fabric.locate.observations import Link, Seen
from everstep.fabric.locate.wire import Wire


class Lossy(NamedTuple):
    ways: tuple[Link, ...]  # both directions if the cable loses in both
    rate: float
    confidence: float
    lost: int
    sent: int


def believed(loads: Mapping[Link, Load], seen: Iterable[Seen]) -> dict[Link, Load]:
    """The loads without port counts that probes contradict: if nearly all of many probes passed a link, its ports count
    something else than packets that arrive."""
    probed: dict[Link, list[int]] = {}
    for each in seen:
        for link in each.links:
            sums = probed.setdefault(link, [0, 0])
            sums[0], sums[1] = sums[0] + each.sent, sums[1] + each.bad
    return {
        link: msgspec.structs.replace(load, wire=None)
        if load.wire is not None and link in probed and _is_contradicted(load.wire, *probed[link])
        else load
        for link, load in loads.items()
    }


def _is_contradicted(wire: Wire, sent: int, bad: int) -> bool:
    rate = min(wire.least, 1 - 1e-6)
    if not wire.is_lossy or rate <= 0 or bad >= rate * sent:
        return False
    share = bad / sent
    gain = (sent - bad) * math.log((1 - share) / (1 - rate)) + (bad * math.log(share / rate) if bad else 0.0)
    return gain >= MIN_GAIN


def lossy_wires(loads: Mapping[Link, Load]) -> list[Lossy]:
    found = {link: load.wire for link, load in loads.items() if load.wire is not None and load.wire.is_lossy}
    cables: dict[tuple[str, ...], list[Link]] = {}
    for link in found:
        cables.setdefault(tuple(sorted(link)), []).append(link)
    return sorted((_lossy(ways, [found[way] for way in ways]) for ways in cables.values()), key=lambda each: -each.rate)


def _lossy(ways: Sequence[Link], wires: Sequence[Wire]) -> Lossy:
    sent, lost = sum(wire.sent for wire in wires), sum(wire.lost for wire in wires)
    doubt = min(math.erfc(wire.rate / wire.error * 4) if wire.error else 0.0 for wire in wires)
    return Lossy(tuple(sorted(ways)), lost / sent, 1.0 - doubt, lost, sent)
