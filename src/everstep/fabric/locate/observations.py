"""Observations: packets sent, lost and late on each one-way path of probes, and the counters of ports meanwhile."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

SLACK_S = 1.0
"""Clocks of hosts may differ by this much, and a probe may be under way for this long."""

MOST_SENT = (1 << 32) - 1
"""Probe numbers have 32 bits. A host that claims to have sent more would outvote all others."""

Link = tuple[str, str]  # one direction: from, to

SENT = ("tx_packets", "port_xmit_packets")
CAME = ("rx_packets", "port_rcv_packets")
"""Names of a port's counters: of an interface, of an InfiniBand device."""


class _Window(Protocol):
    @property
    def at(self) -> float | None: ...
    @property
    def seconds(self) -> float: ...


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Probes on one path in one window. One node and nothing sent: the prober of that host did not run in it."""

    nodes: tuple[str, ...]  # from the sending host to the receiving one
    sent: int
    bad: int  # lost
    late: int = 0  # arrived, but over 10 ms later than the fastest on this path
    at: float | None = None  # end of the window, seconds since the epoch; None: unknown
    seconds: float = 0.0  # length of the window

    @property
    def turn(self) -> str:
        """The node at which a round trip turns back, else the first node. Losses of unknown direction are round
        trips."""
        return self.nodes[len(self.nodes) // 2] if self.nodes[0] == self.nodes[-1] else self.nodes[0]

    @property
    def links(self) -> list[Link]:
        return list(itertools.pairwise(self.nodes))


class Mark(NamedTuple):
    """A reading of a port within a window."""

    seconds: float  # since the window began
    sent: int  # packets sent until then
    came: int


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of one port in one window. None: unknown."""

    node: str
    nic: str
    seconds: float
    gap_s: float  # the longest time between two readings
    at: float | None = None  # end of the window, seconds since the epoch; None: unknown
    capacity_bps: float | None = None
    tx_bps: float | None = None  # bit/s, the highest between two readings
    rx_bps: float | None = None
    grown: dict[str, int] = {}  # by how much each counter grew
    unknown: tuple[str, ...] = ()  # counters with an unknown growth
    marks: tuple[Mark, ...] | None = None  # readings with an exact time; None: unknown


def usable(seen: Iterable[Seen]) -> tuple[list[Seen], dict[str, int]]:
    """The valid observations, and for each receiving host the number of impossible reports: a peer that lies, or
    counters that went back. Leaves out what hosts that did not run sent, received and reported."""
    good, impossible = [], dict[str, int]()
    listed, stalls = list(seen), dict[str, list[Seen]]()
    for each in listed:
        if _is_stall(each):
            stalls.setdefault(each.nodes[0], []).append(each)
    for each in listed:
        if _is_stall(each) or _is_hurt(each, stalls):
            continue
        is_possible = 0 <= each.bad <= each.sent <= MOST_SENT and 0 <= each.late <= each.sent - each.bad
        if not is_possible or len(each.nodes) < 2:
            teller = each.nodes[-1] if each.nodes else ""
            impossible[teller] = impossible.get(teller, 0) + 1
        elif each.sent:
            good.append(each)
    return good, impossible


def _is_stall(seen: Seen) -> bool:
    return len(seen.nodes) == 1 and not seen.sent


def _is_hurt(seen: Seen, stalls: Mapping[str, Sequence[Seen]]) -> bool:
    """Whether the prober of an end did not run: it answered nothing and lost packets in its own sockets, so probes to
    it or from it are no evidence."""
    ends = {seen.nodes[0], seen.nodes[-1], seen.turn} if seen.nodes else set[str]()
    return any(are_beside(seen, stall) for end in ends for stall in stalls.get(end, ()))


def are_beside(one: Seen, other: _Window, slack_s: float = SLACK_S) -> bool:
    """Whether the two windows overlap, within the error of two hosts' clocks; True if a time is unknown."""
    if one.at is None or other.at is None:
        return True
    return one.at - one.seconds - slack_s < other.at and other.at - other.seconds - slack_s < one.at


def merged(windows: Sequence[Sequence[Seen]]) -> list[Seen]:
    """Sums over windows, path by path."""
    sums: dict[tuple[str, ...], list[int]] = {}
    for each in (each for window in windows for each in window):
        counts = sums.setdefault(each.nodes, [0, 0, 0])
        counts[0] += each.sent
        counts[1] += each.bad
        counts[2] += each.late
    return [Seen(nodes=nodes, sent=sent, bad=bad, late=late) for nodes, (sent, bad, late) in sums.items()]


def lateness(paths: Iterable[Seen]) -> list[Seen]:
    """Return the same paths, with the packets that arrived as `sent` and the late ones as `bad`. Leave out paths on
    which no packet arrived."""
    return [Seen(nodes=p.nodes, sent=p.sent - p.bad, bad=p.late) for p in paths if p.sent > p.bad]


def background(paths: Iterable[Seen]) -> float:
    """The median share of bad packets of a path: what all paths have is no fault of one link. Busy hosts make some
    packets late."""
    shares = sorted(path.bad / path.sent for path in paths if path.sent > 0)
    return shares[len(shares) // 2] if shares else 0.0
