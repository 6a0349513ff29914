"""Growth of the port counters of one node in a window, and the traffic of each port in its fullest second. Pure: the
caller passes readings and times.

A counter that went back, wrapped or was missing for a time has no growth in that window.
"""

from collections.abc import Mapping

from everstep.fabric.locate.observations import CAME, SENT, Counted, Mark
from everstep.linux.nics import Nic

READ_S = 0.5
"""Seconds between two readings. All nodes read when their clocks show a multiple of it: if both ports of a cable are
read at the same time, nothing has to be interpolated."""

_PEAK_S = 0.9
"""Least length of the fullest second: shorter bursts fill any link."""

_EXACT_S = 2e-3
"""A reading that took longer, and twice as long as the quickest of its port, was interrupted: its time is unknown. Each
port has its own limit, because a node's drivers differ."""


class Counting:
    def __init__(self, node: str, at: float, nics: Mapping[str, Nic]) -> None:
        """`nics`: the first reading. All times are of a monotonic clock."""
        self._node = node
        self._windows = {name: _Window(_at(at, nic), nic) for name, nic in nics.items()}

    def add(self, at: float, nics: Mapping[str, Nic]) -> None:
        """Add a reading. `at`: time for ports that do not give their own."""
        for name in self._windows.keys() | nics.keys():
            window, nic = self._windows.get(name), nics.get(name)
            if window is None and nic is not None:
                self._windows[name] = _Window(_at(at, nic), nic)
            elif window is not None:
                window.add(_at(at, nic), nic or Nic(None, {}))

    def close(self, epoch: float) -> list[Counted]:
        """Close the window of each port that is present, and begin the next. `epoch`: what to add to these times for
        seconds since the epoch."""
        found = [window.close(self._node, name, epoch) for name, window in sorted(self._windows.items())]
        self._windows = {name: each.next() for name, each in self._windows.items() if each.is_there}
        return found


def _at(at: float, nic: Nic | None) -> float:
    return at if nic is None or nic.taken is None else (nic.taken.begin + nic.taken.end) / 2


class _Window:
    def __init__(self, at: float, nic: Nic, quickest_s: float = _EXACT_S / 2) -> None:
        self._began = self._at = at
        self._nic = nic
        self._quickest_s = quickest_s
        self._grown = dict.fromkeys(nic.counters, 0)
        self._unknown: set[str] = set()
        self._second = _Second(at)
        self._marks: list[Mark] | None = None
        self._gap_s = 0.0

    @property
    def is_there(self) -> bool:
        return bool(self._nic.counters)

    def next(self) -> "_Window":
        return _Window(self._at, self._nic, self._quickest_s)

    def add(self, at: float, nic: Nic) -> None:
        took, before = at - self._at, self._nic.counters
        if took <= 0:
            return
        for name in before.keys() | nic.counters.keys():
            grown = nic.counters[name] - before[name] if name in before and name in nic.counters else -1
            if grown < 0:
                self._unknown.add(name)
            else:
                self._grown[name] = self._grown.get(name, 0) + grown
        self._at, self._nic, self._gap_s = at, nic, max(self._gap_s, took)
        self._second.add(at, self._grown)
        if nic.taken is not None:
            self._marks = self._marks or []
            self._marks += self._mark() if self._is_exact(nic.taken.end - nic.taken.begin) else ()

    def _is_exact(self, took_s: float) -> bool:
        self._quickest_s = max(_EXACT_S / 2, min(1.1 * self._quickest_s, took_s))  # a node may get more ports
        return took_s <= 2 * self._quickest_s

    def _mark(self) -> list[Mark]:
        sent, came = (next((name for name in names if name in self._grown), None) for names in (SENT, CAME))
        if sent is None or came is None:
            return []
        return [Mark(round(self._at - self._began, 4), self._grown[sent], self._grown[came])]

    def close(self, node: str, name: str, epoch: float) -> Counted:
        is_known = self._unknown.isdisjoint((*SENT, *CAME))
        return Counted(
            at=round(self._at + epoch, 3),
            node=node,
            nic=name,
            seconds=round(self._at - self._began, 4),
            gap_s=round(self._gap_s, 3),
            capacity_bps=self._nic.bps,
            tx_bps=self._peak("tx_bytes"),
            rx_bps=self._peak("rx_bytes"),
            grown={name: value for name, value in sorted(self._grown.items()) if name not in self._unknown},
            unknown=tuple(sorted(self._unknown)),
            marks=None if self._marks is None else tuple(self._marks if is_known else ()),
        )

    def _peak(self, name: str) -> float | None:
        peak = None if name in self._unknown else self._second.peak(name, self._at, self._grown)
        return None if peak is None else round(peak)


class _Second:
    """The fullest second of a window, from readings at shorter intervals."""

    def __init__(self, at: float) -> None:
        self._began = self._at = at
        self._until: dict[str, int] = {}
        self._peaks: dict[str, float] = {}

    def add(self, at: float, grown: Mapping[str, int]) -> None:
        if at - self._at >= _PEAK_S:
            self._peaks |= {
                name: self.peak(name, at, grown) or 0.0 for name in ("tx_bytes", "rx_bytes") if name in grown
            }
            self._at, self._until = at, {name: grown.get(name, 0) for name in ("tx_bytes", "rx_bytes")}

    def peak(self, name: str, at: float, grown: Mapping[str, int]) -> float | None:
        """Bit/s in the fullest second. A rest of less than a second counts only if there is no whole second."""
        known = self._peaks.get(name)
        if name not in grown or at <= self._at or (known is not None and at - self._at < _PEAK_S):
            return known
        return max(known or 0.0, (grown[name] - self._until.get(name, 0)) * 8 / (at - self._at))
