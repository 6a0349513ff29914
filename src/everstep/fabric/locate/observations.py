"""What probes saw: for each one-way path the packets that were sent and those that did not come, or came late. And what
ports counted meanwhile."""

import itertools
from collections.abc import Iterable, Sequence

import msgspec

Link = tuple[str, str]  # one direction: from, to


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    nodes: tuple[str, ...]  # from the sending host to the receiving one
    sent: int
    bad: int  # lost
    late: int = 0  # came, but over 10 ms later than the fastest of this way
    at: float | None = None  # when its window ended, seconds since the epoch; None: not known
    seconds: float = 0.0  # of the window

    @property
    def links(self) -> list[Link]:
        return list(itertools.pairwise(self.nodes))


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """One port in a window. None: not known."""

    node: str
    nic: str
    seconds: float
    gap_s: float  # the longest time between two readings
    at: float | None = None  # when the window ended, seconds since the epoch; None: not known
    capacity_bps: float | None = None
    tx_bps: float | None = None  # bit/s, the highest between two readings
    rx_bps: float | None = None
    grown: dict[str, int] = {}  # by how much each counter grew
    unknown: tuple[str, ...] = ()  # counters of which that is not known


def usable(seen: Iterable[Seen]) -> tuple[list[Seen], dict[str, int]]:
    """Without reports that cannot be, and how many of those came from each receiving host: a peer that lies, or whose
    counters went back."""
    good, impossible = [], dict[str, int]()
    for each in seen:
        is_possible = 0 <= each.bad <= each.sent and 0 <= each.late <= each.sent - each.bad
        if not is_possible or len(each.nodes) < 2:
            teller = each.nodes[-1] if each.nodes else ""
            impossible[teller] = impossible.get(teller, 0) + 1
        elif each.sent:
            good.append(each)
    return good, impossible


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
    """The same paths, of the packets that came: `bad` are the late ones."""
    return [Seen(nodes=p.nodes, sent=p.sent - p.bad, bad=p.late) for p in paths if p.sent > p.bad]


def background(paths: Iterable[Seen]) -> float:
    """The median share of bad packets of a path: what is everywhere is no fault of a link. Hosts that are busy make
    some packets late."""
    shares = sorted(path.bad / path.sent for path in paths if path.sent > 0)
    return shares[len(shares) // 2] if shares else 0.0
