"""Ports of InfiniBand, RoCE and EFA devices, as the kernel lists them below /sys. Reads only; nothing is sent."""

import re
from pathlib import Path
from typing import NamedTuple

BASE = "/sys/class/infiniband"
_RATE = re.compile(r"([\d.]+) Gb/sec")


class Port(NamedTuple):
    device: str  # "mlx5_0"
    number: str  # "1"
    path: Path

    @property
    def name(self) -> str:
        return f"{self.device}/{self.number}"

    @property
    def bps(self) -> float | None:
        """The rate at which it can send, in bit/s. None: unknown."""
        try:
            found = _RATE.match((self.path / "rate").read_text())
        except (OSError, UnicodeDecodeError):
            return None
        return float(found[1]) * 1e9 if found and float(found[1]) > 0 else None

    def counter(self, name: str) -> int | None:
        """A counter of the port, or of the driver where the port has none; None if it cannot be read."""
        for folder in ("counters", "hw_counters"):
            try:
                return int((self.path / folder / name).read_text(), 0)
            except (OSError, ValueError):
                continue
        return None


def ports(base: str | Path = BASE) -> list[Port]:
    """In order; empty where there is no such device."""
    try:
        found = sorted(Path(base).glob("*/ports/*"))
    except OSError:
        return []
    return [Port(device=path.parent.parent.name, number=path.name, path=path) for path in found]
