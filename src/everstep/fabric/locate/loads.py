"""How full each link is: the counters of its two ports, against its capacity.

A full link drops what does not fit into its queue; that is no fault of its cable. A link counts as full only if that is
known: a rate without a capacity excuses no loss.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from everstep.fabric.locate.observations import SLACK_S, Counted, Link, Seen, are_beside
from everstep.fabric.locate.ports import is_impossible_rate
from everstep.fabric.locate.wire import Wire, wire_of
from everstep.fabric.topology.values import Topology

FULL = 0.9
"""Share of the capacity, over a second. No byte counter has headers and gaps between packets: TCP alone gives 95 %."""

_BUSY = 0.6
"""Share of the capacity, in the fullest second. From here on, a link may have been full for much of it."""

_BURSTS_S = 60.0
"""Traffic that fills a link for a part of a second is in no second's rate. A link that was busy within a minute has
such bursts, and they make packets late."""

MOST_GAP_S = 2.5
"""If a port was not read for longer, it may have been full meanwhile."""

_BEGUN_S = 30.0
"""Probes and counters start one after the other, and print their last lines so: for this time, plus one window of the
counters, one may run without the other. Probes lost at other times still count."""

GIVEN_UP_S = 1.25
"""After so long without an answer, a probe counts as lost (`probing/flow.py`)."""

_LONG_S = 5.0

_PRINTED_S = 0.2
"""A window of probes may end this long after the last reading: clocks differ."""

_DAMAGE = ("rx_crc_errors", "rx_frame_errors", "symbol_error", "port_rcv_errors")
_DISCARDS = ("port_xmit_discards", "SAI_PORT_STAT_IF_OUT_DISCARDS")
"""Counters of the whole port. Linux's tx_dropped is not one of them: it leaves out drops of the queue."""

_QUEUE_DROPS = ("qdisc_drops",)
"""Counters of the kernel's queue only. The NIC, or the host of a virtual machine, may drop packets too."""


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """Rate in one window of one of the two ports."""

    bps: float  # bit/s, in the fullest second
    gap_s: float = 0.0  # longest time between two readings
    at: float | None = None  # end of the window; None: may be any time
    seconds: float = 0.0
    discards: int | None = None  # packets that the sending port's queue dropped; None: unknown, as for the other port


def _ended(rate: Rate) -> float:
    """End of a window, for sorting; a window of unknown time may be of any time."""
    return -math.inf if rate.at is None else rate.at


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Load of one direction of a cable. None: unknown."""

    rates: tuple[Rate, ...] = ()
    capacity_bps: float | None = None
    errors: int | None = None  # packets that the receiving port counted as damaged
    wire: Wire | None = None  # loss of its cable, from the counters of both ports
    longest_s: float = 0.0  # length of its longest window

    def __post_init__(self) -> None:
        """Sort by time, so that the rates of one moment are found among those of a day."""
        msgspec.structs.force_setattr(self, "rates", tuple(sorted(self.rates, key=_ended)))
        msgspec.structs.force_setattr(self, "longest_s", max((rate.seconds for rate in self.rates), default=0.0))

    @property
    def bps(self) -> float | None:
        return max((rate.bps for rate in self.rates), default=None)

    def share_beside(self, seen: Seen) -> float:
        """Share of the capacity in the fullest second of about that time; 0 if unknown. If there are no windows of that
        time, the clock of a host may have been set, so any window may be of that time."""
        rates = self._beside(seen, _BURSTS_S) or self.rates
        return max((rate.bps for rate in rates), default=0.0) / self.capacity_bps if self.capacity_bps else 0.0

    @property
    def lost_on_wire(self) -> float:
        """Known loss rate of the cable; 0 if unknown."""
        return 0.0 if self.wire is None else max(0.0, self.wire.rate)

    @property
    def is_full(self) -> bool | None:
        """Whether it was full in any window; None: unknown."""
        return self._is_full(self.rates)

    def is_full_beside(self, seen: Seen) -> bool | None:
        """Whether it was full in the windows of that time; None: unknown. If there is no such window, the clock of a
        host may have been set, so any window may be of that time."""
        beside = self._beside(seen)
        if not beside:
            return self._is_full(self.rates) or None
        return self._is_full(beside)

    def _beside(self, seen: Seen, slack_s: float = SLACK_S) -> list[Rate]:
        if seen.at is None:
            return list(self.rates)
        always = bisect_right(self.rates, -math.inf, key=_ended)
        begin = bisect_left(self.rates, seen.at - seen.seconds - slack_s, lo=always, key=_ended)
        end = bisect_right(self.rates, seen.at + slack_s + self.longest_s, lo=begin, key=_ended)
        return [*self.rates[:always], *(rate for rate in self.rates[begin:end] if are_beside(seen, rate, slack_s))]

    def _is_full(self, rates: Sequence[Rate]) -> bool | None:
        if self.capacity_bps is None or not rates:
            return None
        if any(rate.bps >= FULL * self.capacity_bps for rate in rates):
            return True
        return None if any(rate.gap_s > MOST_GAP_S for rate in rates) else False

    def explains_losses(self, seen: Seen) -> bool:
        """Whether its queue may have lost some of these packets, with no evidence against its cable. A queue that
        dropped packets explains losses even if the link was full for less than a second."""
        dropped = [rate.discards for rate in self._beside(seen) or self.rates if rate.discards is not None]
        if self.errors or (dropped and not any(dropped)):
            return False
        return bool(dropped) or self.is_full_beside(seen) is True


class FullLink(msgspec.Struct, frozen=True, kw_only=True):
    link: str  # "leaf0 > spine1"
    bps: float
    capacity_bps: float
    rate: float  # share of probes lost in its queue or by its cable
    cable_rate: float | None = None  # share lost by its cable, from the counters of both ports; None: unknown
    cable_most: float | None = None  # upper bound of `cable_rate`


def full_on(
    seen: Seen, loads: Mapping[Link, Load], known: dict[tuple[Link, float | None, float], bool] | None = None
) -> frozenset[Link]:
    """The links of this path that were full meanwhile. `known`: a cache that is shared with other paths."""
    known = {} if known is None else known
    full = []
    for link in seen.links:
        if link in loads:
            key = (link, seen.at, seen.seconds)
            if key not in known:
                known[key] = loads[link].explains_losses(seen)
            full += [link] if known[key] else []
    return frozenset(full)


def counted_meanwhile(seen: Sequence[Seen], loads: Mapping[Link, Load]) -> list[Seen]:
    """Drops windows just before the first and just after the last reading of any port: the loads of that time are
    unknown. A host that has only such windows keeps them: it has another clock."""
    rates = [rate for load in loads.values() for rate in load.rates]
    ends = [rate.at for rate in rates if rate.at is not None]
    if not ends or len(ends) < len(rates):
        return list(seen)
    begin, end = min(rate.at - rate.seconds for rate in rates if rate.at is not None), max(ends) + _PRINTED_S
    near_s = _BEGUN_S + max(rate.seconds for rate in rates)
    inside = [each.at is None or (begin <= _sent_from(each) and each.at <= end) for each in seen]
    known = {each.nodes[0] for each, is_inside in zip(seen, inside, strict=True) if is_inside}
    return [
        each
        for each, is_inside in zip(seen, inside, strict=True)
        if is_inside or each.nodes[0] not in known or not _touches(each, begin - near_s, end + near_s)
    ]


def _sent_from(seen: Seen) -> float:
    """When the first packets were sent that this window counts: a lost one counts in the window in which it is given
    up. In a long window those are few."""
    assert seen.at is not None
    return seen.at - seen.seconds - (GIVEN_UP_S if seen.seconds < _LONG_S else 0.0)


def _touches(seen: Seen, begin: float, end: float) -> bool:
    return seen.at is not None and seen.at > begin and seen.at - seen.seconds < end


Known = dict[tuple[Link, float | None, float], float]
"""Cache: link and window -> share of its capacity that the link carried then."""


def own_lateness(windows: Iterable[Seen], loads: Mapping[Link, Load], known: Known) -> dict[tuple[str, ...], float]:
    """For each path, the largest share of packets that traffic on its busy links makes late if no link is slow: a link
    has a queue only while it sends. Traffic of another time makes no packet late."""
    late: dict[tuple[str, ...], float] = {}
    came: dict[tuple[str, ...], int] = {}
    for each in windows:
        shares = [_share(link, each, loads, known) for link in each.links if link in loads]
        own = 1.0 - math.prod(1.0 - min(1.0, share) for share in shares if share >= _BUSY)
        late[each.nodes] = late.get(each.nodes, 0.0) + own * (each.sent - each.bad)
        came[each.nodes] = came.get(each.nodes, 0) + each.sent - each.bad
    return {nodes: late[nodes] / num for nodes, num in came.items() if num > 0}


def share_of_traffic(link: Link, windows: Iterable[Seen], loads: Mapping[Link, Load], known: Known) -> float:
    """Mean share of its capacity that a link carried when packets crossed it; 0: unknown."""
    over = [each for each in windows if link in each.links]
    came = sum(each.sent - each.bad for each in over)
    busy = sum(_share(link, each, loads, known) * (each.sent - each.bad) for each in over)
    return busy / came if came else 0.0


def _share(link: Link, seen: Seen, loads: Mapping[Link, Load], known: Known) -> float:
    key = (link, seen.at, seen.seconds)
    if key not in known:
        known[key] = loads[link].share_beside(seen)
    return known[key]


class _Ends(msgspec.Struct, frozen=True):
    """The windows of both ends of a link."""

    sender: list[Counted] = []
    receiver: list[Counted] = []
    capacities: list[float] = []


def loads_of(counted: Iterable[Counted], topology: Topology) -> dict[Link, Load]:
    """The load of each direction of a cable with counters from an end. The fullest window decides."""
    cables = {(end.node, end.name): cable for cable in topology.cables for end in (cable.one, cable.other)}
    found: dict[Link, _Ends] = {}
    for each in counted:
        cable = cables.get((each.node, each.nic))
        if cable is None or each.seconds <= 0 or each.gap_s < 0:
            continue
        far = cable.other if cable.one.node == each.node else cable.one
        out, into = (found.setdefault(link, _Ends()) for link in ((each.node, far.node), (far.node, each.node)))
        out.sender.append(each)
        into.receiver.append(each)
        known = [bps for bps in (each.capacity_bps, cable.one.bps, cable.other.bps) if bps is not None]
        out.capacities.extend(known)
        into.capacities.extend(known)
    return {link: _load(ends) for link, ends in found.items()}


def _load(ends: _Ends) -> Load:
    sent = [(each, each.tx_bps, _discards(each)) for each in ends.sender]
    came = [(each, each.rx_bps, None) for each in ends.receiver]
    capacity_bps = min((bps for bps in ends.capacities if bps > 0), default=None)
    rates = [
        Rate(bps=bps, gap_s=each.gap_s, at=each.at, seconds=each.seconds, discards=discards)
        for each, bps, discards in (*sent, *came)
        if bps is not None and not (capacity_bps and is_impossible_rate(bps, capacity_bps))
    ]
    return Load(
        rates=tuple(rates),
        capacity_bps=capacity_bps,
        errors=_sum(ends.receiver, _DAMAGE),
        wire=wire_of(ends.sender, ends.receiver),
    )


def _discards(sender: Counted) -> int | None:
    return _sum([sender], _QUEUE_DROPS) or _sum([sender], _DISCARDS)


def _sum(windows: Iterable[Counted], names: Iterable[str]) -> int | None:
    """Sum of these counters over the windows; None if there is no such counter, or if a window lacks its value."""
    values = [each.grown.get(name) for each in windows for name in names if name in each.grown or name in each.unknown]
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
