"""This host: its NICs from /sys/class/net and /sys/class/infiniband, and its switches from LLDP if lldpd runs."""

import contextlib
import json
import shutil
import socket
import subprocess
from pathlib import Path

from everstep.fabric.readers.find import with_neighbours
from everstep.fabric.readers.lldp import read_neighbours
from everstep.fabric.topology.values import Port, Topology
from everstep.linux import infiniband

_MBIT = 1e6
_LLDP_S = 5.0


def read_host(sys: Path = Path("/sys"), name: str | None = None) -> Topology:
    """The topology of this host. Unknown values of a NIC are None. Raises FabricError."""
    host = name or socket.gethostname()
    nics = (*_interfaces(host, sys / "class/net"), *_ports(host, sys / "class/infiniband"))
    return with_neighbours(host, _neighbours(), f"host {host}", nics)


def _interfaces(host: str, base: Path) -> list[Port]:
    """Interfaces with a device; if there is none, as in a container, all except loopback."""
    try:
        found = sorted(each for each in base.iterdir() if each.name != "lo" and (each / "operstate").exists())
    except OSError:
        return []
    real = [each for each in found if (each / "device").exists()] or found
    return [_interface(host, path) for path in real]


def _interface(host: str, path: Path) -> Port:
    speed, mtu = _number(path / "speed"), _number(path / "mtu")
    duplex = _text(path / "duplex")
    state = _text(path / "operstate")
    return Port(
        node=host,
        name=path.name,
        bps=speed * _MBIT if speed is not None and speed > 0 else None,
        mtu=mtu,
        duplex=duplex if duplex in ("full", "half") else None,
        is_up={"up": True, "down": False}.get(state or ""),
    )


def _ports(host: str, base: Path) -> list[Port]:
    found = []
    for number, port in enumerate(infiniband.ports(base)):
        state = _text(port.path / "state") or ""
        found.append(
            Port(
                node=host,
                name=port.name,
                rail=number,
                bps=port.bps,
                is_up=("ACTIVE" in state) if state else None,
            )
        )
    return found


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _neighbours() -> dict[str, Port]:
    """NIC -> port of the switch that it hears; empty if lldpd does not run."""
    program = shutil.which("lldpcli")
    if program is None:
        return {}
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        done = subprocess.run([program, "-f", "json0", "show", "neighbors"], capture_output=True, timeout=_LLDP_S)
        if done.returncode == 0:
            return read_neighbours(json.loads(done.stdout), "lldpcli")
    return {}
