"""The counters of this host's network ports, as the kernel lists them. Reads only; nothing is sent to the network."""

from pathlib import Path
from typing import NamedTuple

from everstep.linux import infiniband
from everstep.linux.interfaces import interface_counters
from everstep.linux.qdiscs import root_drops

_WORD_BYTES = 4  # port_xmit_data and port_rcv_data count in words of four bytes (IBTA)
_MBIT = 1e6


class Nic(NamedTuple):
    bps: float | None  # what it can send, bit/s; None: not known, as of virtual ones
    counters: dict[str, int]  # by the kernel's names; of each port tx_bytes, rx_bytes; qdisc_drops


def read_nics(root: Path = Path("/")) -> dict[str, Nic]:
    """By name ("eth0", "mlx5_0/1"), without the loopback. What cannot be read is left out."""
    found = {}
    for name, counters in _counted(root).items():
        speed = _number(root / "sys/class/net" / name / "speed")
        if name != "lo" and counters:
            found[name] = Nic(speed * _MBIT if speed is not None and speed > 0 else None, counters)
    for port in infiniband.ports(root / infiniband.BASE.lstrip("/")):
        counters = _all(port.path / "hw_counters") | _all(port.path / "counters")
        for name, words in (("tx_bytes", "port_xmit_data"), ("rx_bytes", "port_rcv_data")):
            if words in counters:
                counters[name] = counters[words] * _WORD_BYTES
        if counters:
            found[port.name] = Nic(port.bps, counters)
    return found


def _counted(root: Path) -> dict[str, dict[str, int]]:
    """By interface."""
    if root != Path("/") or not (known := interface_counters()):
        return {path.name: _all(path / "statistics") for path in _listed(root / "sys/class/net")}
    for name, drops in root_drops().items():
        if name in known:
            known[name]["qdisc_drops"] = drops
    return known


def _all(folder: Path) -> dict[str, int]:
    values = {path.name: _number(path) for path in _listed(folder)}
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
