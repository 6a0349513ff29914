"""The counters of this host's network ports, as the kernel lists them. Reads only; nothing is sent to the network."""

import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from everstep.linux import infiniband
from everstep.linux.interfaces import Taken, read_interfaces
from everstep.linux.qdiscs import root_drops

_WORD_BYTES = 4  # port_xmit_data and port_rcv_data count in words of four bytes (IBTA)
_MBIT = 1e6


class Nic(NamedTuple):
    bps: float | None  # what it can send, bit/s; None: not known, as of virtual ones
    counters: dict[str, int]  # by the kernel's names; of each port tx_bytes, rx_bytes; qdisc_drops
    taken: Taken | None = None  # when its packets were counted; None: not known


def read_nics(root: Path = Path("/"), speeds: "Speeds | None" = None) -> dict[str, Nic]:
    """By name ("eth0", "mlx5_0/1"), without the loopback. What cannot be read is left out. `speeds`: of whoever reads
    again and again."""
    speeds = speeds or Speeds()
    counted, taken = _counted(root)
    found = {
        name: Nic(speeds.of(name, root), counters, taken)
        for name, counters in counted.items()
        if counters and name != "lo"
    }
    for port in infiniband.ports(root / infiniband.BASE.lstrip("/")):
        counters, taken = _of_infiniband(port)
        if counters:
            found[port.name] = Nic(port.bps, counters, taken)
    return found


class Speeds:
    """The rates at which interfaces can send. Some drivers ask their card for the rate, so it is asked every ten
    seconds only."""

    _EVERY_S = 10.0

    def __init__(self) -> None:
        self._known: dict[str, float | None] = {}
        self._asked: float | None = None

    def of(self, name: str, root: Path) -> float | None:
        now = time.monotonic()
        if self._asked is None or now - self._asked >= self._EVERY_S:
            self._known, self._asked = {}, now
        if name not in self._known:
            speed = _number(root / "sys/class/net" / name / "speed")
            self._known[name] = speed * _MBIT if speed is not None and speed > 0 else None
        return self._known[name]


def own_interfaces(sys: Path = Path("/sys")) -> frozenset[str]:
    """Interfaces that belong to the machine: those with a device behind them, and bonds of those. All others are made
    by software, and go with it; where there is nothing else, as in a pod or a namespace, they are its own, but for
    the loopback."""
    listed = [path for path in _listed(sys / "class/net") if path.name != "lo"]
    own = {path.name for path in listed if (path / "device").exists() or (path / "bonding").exists()}
    return frozenset(own or {path.name for path in listed})


def _of_infiniband(port: infiniband.Port) -> tuple[dict[str, int], Taken | None]:
    """Packets first, one after the other: a driver may need milliseconds for each of the others."""
    begin = time.monotonic()
    packets = {name: _number(port.path / "counters" / name) for name in ("port_xmit_packets", "port_rcv_packets")}
    taken = Taken(begin, time.monotonic())
    counters = _all(port.path / "hw_counters") | _all(port.path / "counters", without=packets.keys())
    known = {name: value for name, value in packets.items() if value is not None}
    counters |= known
    for name, words in (("tx_bytes", "port_xmit_data"), ("rx_bytes", "port_rcv_data")):
        if words in counters:
            counters[name] = counters[words] * _WORD_BYTES
    return counters, taken if known else None


def _counted(root: Path) -> tuple[dict[str, dict[str, int]], Taken | None]:
    """By interface."""
    known, taken = read_interfaces() if root == Path("/") else ({}, None)
    if not known:
        return {path.name: _all(path / "statistics") for path in _listed(root / "sys/class/net")}, None
    for name, drops in root_drops().items():
        if name in known:
            known[name]["qdisc_drops"] = drops
    return known, taken


def _all(folder: Path, without: Collection[str] = ()) -> dict[str, int]:
    values = {path.name: _number(path) for path in _listed(folder) if path.name not in without}
    return {name: value for name, value in values.items() if value is not None}


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def read_tcp(root: Path = Path("/")) -> dict[str, int]:
    """Counters of all TCP connections of this thread's network namespace: segments sent, and sent again. Empty: not
    known."""
    try:
        lines = (root / "proc/thread-self/net/snmp").read_text().splitlines()
        names, values = (line.split()[1:] for line in lines if line.startswith("Tcp:"))
        found = dict(zip(names, values, strict=True))
        return {"segments": int(found["OutSegs"]), "retransmits": int(found["RetransSegs"])}
    except (OSError, ValueError, KeyError):
        return {}
