"""What the ports of one node counted in a window, and how much each sent in its fullest second. Pure: readings and
times are passed in.

A counter that went back, wrapped or was not there all the time has no difference in that window.
"""

from collections.abc import Mapping

from everstep.fabric.locate.observations import Counted
from everstep.linux.nics import Nic

READ_S = 1.0
"""Between two readings: an average over the whole window does not show a link that was full for some seconds of it."""


class Counting:
    def __init__(self, node: str, at: float, nics: Mapping[str, Nic]) -> None:
        """The first reading. Times are of a clock that only goes forward."""
        self._node = node
        self._windows = {name: _Window(at, nic) for name, nic in nics.items()}

    def add(self, at: float, nics: Mapping[str, Nic]) -> None:
        for name in self._windows.keys() | nics.keys():
            window, nic = self._windows.get(name), nics.get(name)
            if window is None and nic is not None:
                self._windows[name] = _Window(at, nic)
            elif window is not None:
                window.add(at, nic or Nic(None, {}))

    def close(self, wall: float) -> list[Counted]:
        """Since the last time, for each port that is there. `wall`: seconds since the epoch."""
        found = [window.close(self._node, name, wall) for name, window in sorted(self._windows.items())]
        self._windows = {name: each.next() for name, each in self._windows.items() if each.is_there}
        return found


class _Window:
    def __init__(self, at: float, nic: Nic) -> None:
        self._began = self._at = at
        self._nic = nic
        self._grown = dict.fromkeys(nic.counters, 0)
        self._unknown: set[str] = set()
        self._peaks: dict[str, float] = {}
        self._gap_s = 0.0

    @property
    def is_there(self) -> bool:
        return bool(self._nic.counters)

    def next(self) -> "_Window":
        return _Window(self._at, self._nic)

    def add(self, at: float, nic: Nic) -> None:
        took, before = at - self._at, self._nic.counters
        if took <= 0:
            return
        for name in before.keys() | nic.counters.keys():
            grown = nic.counters[name] - before[name] if name in before and name in nic.counters else -1
            if grown < 0:
                self._unknown.add(name)
                continue
            self._grown[name] = self._grown.get(name, 0) + grown
            if name in ("tx_bytes", "rx_bytes"):
                self._peaks[name] = max(self._peaks.get(name, 0.0), grown * 8 / took)
        self._at, self._nic, self._gap_s = at, nic, max(self._gap_s, took)

    def close(self, node: str, name: str, wall: float) -> Counted:
        return Counted(
            at=round(wall, 3),
            node=node,
            nic=name,
            seconds=round(self._at - self._began, 3),
            gap_s=round(self._gap_s, 3),
            capacity_bps=self._nic.bps,
            tx_bps=self._peak("tx_bytes"),
            rx_bps=self._peak("rx_bytes"),
            grown={name: value for name, value in sorted(self._grown.items()) if name not in self._unknown},
            unknown=tuple(sorted(self._unknown)),
        )

    def _peak(self, name: str) -> float | None:
        peak = None if name in self._unknown else self._peaks.get(name)
        return None if peak is None else round(peak)
