"""Counters of this node's network ports and TCP that suggest trouble: changes over the last seconds. For evidence."""

import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from everstep.fabric.locate.observations import Counted
from everstep.fabric.probing.counting import Counting
from everstep.linux.nics import Nic, read_nics, read_tcp
from everstep.model.facts import PortSeen
from everstep.probes.node.bounded import Call

ROUND_S = 2.0
NUM_ROUNDS = 5
MOST_PORTS = 16
TCP = "tcp"

_TROUBLE = (
    *("error", "discard", "retrans", "cnp", "pause", "timeout", "out_of_sequence", "slow_restart", "tx_dropped"),
    *("qdisc_drops", "link_downed", "link_error_recovery", "integrity", "overrun", "ecn_marked"),
)
"""Parts of names of counters. Received packets that Linux drops mostly belong to protocols without a listener."""


class Ports:
    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._reading: Call[tuple[float, dict[str, Nic]]] | None = None
        self._counting: Counting | None = None
        self._rounds: deque[list[Counted]] = deque(maxlen=NUM_ROUNDS)

    def look(self) -> tuple[PortSeen, ...]:
        """A round ends, another begins. What grew over the last rounds, port by port. Waits for nothing: while a driver
        does not answer, nothing is known."""
        if self._reading is not None and not self._reading.done.is_set():
            return ()
        if self._reading is not None:
            self.take(*self._reading.result())
        self._reading = Call(self._read, "everstep-ports")
        return self.seen()

    def _read(self) -> tuple[float, dict[str, Nic]]:
        return time.monotonic(), read_nics(self._root) | {TCP: Nic(None, read_tcp(self._root))}

    def take(self, at: float, nics: Mapping[str, Nic]) -> None:
        if self._counting is None:
            self._counting = Counting("", at, nics)
        else:
            self._counting.add(at, nics)
            self._rounds.append(self._counting.close(0.0))

    def seen(self) -> tuple[PortSeen, ...]:
        """Combine the rounds: what is unknown in one of them is unknown for all."""
        ports: dict[str, list[Counted]] = {}
        for counted in (each for listed in self._rounds for each in listed):
            ports.setdefault(counted.nic, []).append(counted)
        seen = [_joined(nic, listed) for nic, listed in sorted(ports.items())]
        return tuple(port for port in seen if port.grown or port.unknown)[:MOST_PORTS]


def _joined(nic: str, rounds: list[Counted]) -> PortSeen:
    unknown = {name for each in rounds for name in each.unknown if _is_trouble(name)}
    grown: dict[str, int] = {}
    for name, value in (item for each in rounds for item in each.grown.items()):
        if value and _is_trouble(name) and name not in unknown:
            grown[name] = grown.get(name, 0) + value
    return PortSeen(nic=nic, seconds=sum(each.seconds for each in rounds), grown=grown, unknown=tuple(sorted(unknown)))


def _is_trouble(name: str) -> bool:
    return any(part in name for part in _TROUBLE)
