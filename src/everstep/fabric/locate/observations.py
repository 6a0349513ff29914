"""What probes saw: for each one-way path the packets that were sent and those that did not come, or came late."""

import itertools
from collections.abc import Iterable, Sequence

import msgspec

Link = tuple[str, str]  # one direction: from, to


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    nodes: tuple[str, ...]  # from the sending host to the receiving one
    sent: int
    bad: int  # lost, or late: what is looked for

    @property
    def links(self) -> list[Link]:
        return list(itertools.pairwise(self.nodes))


def usable(seen: Iterable[Seen]) -> tuple[list[Seen], dict[str, int]]:
    """Without reports that cannot be, and how many of those came from each receiving host: a peer that lies, or whose
    counters went back."""
    good, impossible = [], dict[str, int]()
    for each in seen:
        if each.sent < 0 or not 0 <= each.bad <= each.sent or len(each.nodes) < 2:
            teller = each.nodes[-1] if each.nodes else ""
            impossible[teller] = impossible.get(teller, 0) + 1
        elif each.sent:
            good.append(each)
    return good, impossible


def merged(windows: Sequence[Sequence[Seen]]) -> list[Seen]:
    """Sums over windows, path by path."""
    sums: dict[tuple[str, ...], list[int]] = {}
    for each in (each for window in windows for each in window):
        sent_bad = sums.setdefault(each.nodes, [0, 0])
        sent_bad[0] += each.sent
        sent_bad[1] += each.bad
    return [Seen(nodes=nodes, sent=sent, bad=bad) for nodes, (sent, bad) in sums.items()]
