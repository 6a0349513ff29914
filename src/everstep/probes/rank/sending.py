"""For how long a rank's data was on its way to another machine, since the look before: the kernel's own clock of each
connection (`tcpi_busy_time`), without the time in which the other side had no room for it.

A link that became slow shows nowhere else: all ranks enter the collective in time, and all wait in it. Called once per
round of the fail-slow vote. What cannot be read is unknown, and says so by None.
"""

from collections.abc import Iterable

import msgspec

from everstep.probes.rank.traffic import Connection, TrafficError, connections, sockets_of


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """By the connection on which data was on its way for longest."""

    busy_s: float
    says: str  # "9.2 s of 10 s to 10.77.0.3, 1.2 MB/s, 3 segments sent again"


class Sending:
    """Of all ranks of a node."""

    def __init__(self) -> None:
        self._before: dict[int, dict[int, Connection]] = {}
        self._at = 0.0

    def look(self, pids: Iterable[int], at: float) -> dict[int, Sent]:
        """By process. One that is seen for the first time, or cannot be seen, is left out."""
        try:
            owned = sockets_of(pids)
            counted = connections()
        except TrafficError:
            self._before = {}
            return {}
        now = {pid: {inode: counted[inode] for inode in inodes if inode in counted} for pid, inodes in owned.items()}
        before, window_s = self._before, at - self._at
        self._before, self._at = now, at
        if window_s <= 0:
            return {}
        found = {pid: _busiest(before[pid], mine, window_s) for pid, mine in now.items() if pid in before}
        return {pid: sent for pid, sent in found.items() if sent is not None}


def _busiest(before: dict[int, Connection], after: dict[int, Connection], window_s: float) -> Sent | None:
    pairs = [(before[inode], each) for inode, each in after.items() if inode in before]
    grown = [(b.busy_s - a.busy_s, a, b) for a, b in pairs if a.busy_s is not None and b.busy_s is not None]
    if not grown:
        return None
    busy_s, a, b = max(grown, key=lambda each: each[0])
    # A connection that is open all the time counts by the kernel's ticks: not more than there was.
    busy_s = min(max(0.0, busy_s), window_s)
    rate = (b.acked - a.acked) / max(busy_s, 1e-3) / 1e6
    again = b.retransmits - a.retransmits
    lost = f", {again} segments sent again" if again > 0 else ""
    return Sent(busy_s=busy_s, says=f"{busy_s:.2g} s of {window_s:.2g} s to {b.peer}, at {rate:.2g} MB/s{lost}")
