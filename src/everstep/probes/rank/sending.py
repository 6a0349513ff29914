"""Time for which a rank's data was on its way to another machine, since the last look: the kernel's own clock of each
connection (`tcpi_busy_time`), without the time in which the receiver had no room for it.

A link that became slow shows nowhere else: all ranks enter the collective in time, and all wait in it. Called once per
round of the fail-slow vote. What cannot be read is unknown: None.

The clock also runs while the receiver delays its acknowledgement, as kernels do if no reply carries it: 44 ms for each
message to a rank that is late, however fast the link. So this time is subtracted for each segment, as far as the bytes
do not need it on any link of a job.
"""

from collections.abc import Callable, Iterable

import msgspec

from everstep.probes.rank.traffic import Connection, TrafficError, connections, sockets_of

CONFIRMATION_S = 0.044
"""A delayed acknowledgement: Linux's 40 ms (TCP_DELACK_MIN) and a tick of its clock. Measured: 44.0 ms."""

SLOWEST_BYTES_S = 0.5e6
"""4 Mbit/s: no job trains over less, and time beyond this rate is not spent waiting for the wire."""


def crosses_a_link(connection: Connection) -> bool:
    return not connection.is_local


UNREAD_SHARE = 0.05
"""Share of the time since the last look; less is not reported."""


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the connection on which data was on its way for longest."""

    busy_s: float
    share: float  # share of the time since the last look
    says: str  # "9.2 s of 10 s to 10.77.0.3, 1.2 MB/s, 3 segments sent again"
    lost: int = 0  # segments that it sent again
    unread: str = ""  # of the connection with the longest full receiver: "for 9 s of 10 s there was no room at ..."


class Sending:
    """Sending times of all ranks of a node."""

    def __init__(self, counts: Callable[[Connection], bool] = crosses_a_link) -> None:
        """`counts`: selects the connections."""
        self._counts = counts
        self._before: dict[int, dict[int, Connection]] = {}
        self._at = 0.0

    def look(self, pids: Iterable[int], at: float) -> dict[int, Sent]:
        """Figures by process. A process that is new, or not readable, is left out."""
        try:
            owned = sockets_of(pids)
            counted = {inode: each for inode, each in connections().items() if self._counts(each)}
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
    grown = [(busy_s, a, b) for a, b in pairs if (busy_s := _busy_s(a, b, window_s)) is not None]
    if not grown:
        return None
    busy_s, a, b = max(grown, key=lambda each: each[0])
    rate = (b.acked - a.acked) / max(busy_s, 1e-3) / 1e6
    lost = max(0, b.retransmits - a.retransmits)
    again = f", {lost} segments sent again" if lost else ""
    says = f"{busy_s:.2g} s of {window_s:.2g} s to {b.peer}, at {rate:.2g} MB/s{again}"
    return Sent(busy_s=busy_s, share=busy_s / window_s, says=says, lost=lost, unread=_unread(pairs, window_s))


def _unread(pairs: Iterable[tuple[Connection, Connection]], window_s: float) -> str:
    """A receive window of zero: the process at the other end does not read its data."""
    full = [(b.full_s - a.full_s, b.peer) for a, b in pairs if a.full_s is not None and b.full_s is not None]
    full_s, peer = max(full, default=(0.0, ""))
    if full_s < UNREAD_SHARE * window_s:
        return ""
    full_s = min(full_s, window_s)
    return (
        f"for {full_s:.2g} s of {window_s:.2g} s there was no room for its data at {peer}: what came there is not read"
    )


def _busy_s(before: Connection, after: Connection, window_s: float) -> float | None:
    if before.busy_s is None or after.busy_s is None:
        return None
    # A connection that is always busy counts by the kernel's ticks: cap it at the window.
    busy_s = min(max(0.0, after.busy_s - before.busy_s), window_s)
    if after.retransmits > before.retransmits:
        return busy_s  # lost segments explain any time
    needless_s = busy_s - (after.acked - before.acked) / SLOWEST_BYTES_S
    kept_back_s = CONFIRMATION_S * (after.segments - before.segments)
    return busy_s - max(0.0, min(needless_s, kept_back_s))
