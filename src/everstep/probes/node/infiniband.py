"""InfiniBand and RoCE ports: state, flaps and error counters, from /sys/class/infiniband.

A port that was never active is unused, and no alert. The limits are per second and those of public fleets (NVSentinel's
monitor): a healthy link counts almost no errors.
"""

from pathlib import Path

import msgspec

from everstep.linux import infiniband
from everstep.model.facts import Alert
from everstep.probes.sense import Counters, UnsupportedError, alert, read_text

EVERY_S = 5.0

LIMITS_PER_S: dict[str, float] = {
    "symbol_error": 10.0,
    "link_error_recovery": 5 / 60,
    "port_rcv_errors": 10.0,
    "port_xmit_discards": 100.0,
    "local_link_integrity_errors": 0.0,
    "excessive_buffer_overrun_errors": 0.0,
    "local_ack_timeout_err": 1.0,
    "roce_slow_restart": 10.0,
}
"""A counter that grows faster is reported. 0: any growth is."""
_ACTIVE = "ACTIVE"
_FLAPS = "link_downed"


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """One port at one moment. A counter that cannot be read is not in `counters`."""

    name: str  # "mlx5_0/1"
    state: str  # "ACTIVE", "DOWN", ...; empty: unknown
    physical: str = ""  # "LinkUp", "Polling", "Disabled"
    counters: dict[str, int] = {}


def read_ports(folder: Path) -> list[Port]:
    """Ports of all devices in a folder like /sys/class/infiniband."""
    ports = []
    for port in infiniband.ports(folder):
        values = {name: port.counter(name) for name in (*LIMITS_PER_S, _FLAPS)}
        counters = {name: value for name, value in values.items() if value is not None}
        state, physical = (_word(read_text(port.path / name)) for name in ("state", "phys_state"))
        ports.append(Port(name=port.name, state=state, physical=physical, counters=counters))
    return ports


class Infiniband:
    """The sense for InfiniBand and RoCE ports."""

    name = "infiniband"
    every_s = EVERY_S

    def __init__(self, sys: Path = Path("/sys")) -> None:
        self._folder = sys / "class" / "infiniband"
        self._watch = PortWatch()

    def look(self, now: float) -> list[Alert]:
        ports = read_ports(self._folder)
        if not ports and not self._watch.has_seen_any:
            raise UnsupportedError("no InfiniBand or RoCE device on this node")
        return self._watch.judge(ports, now)

    def close(self) -> None:
        return


class PortWatch:
    """The rule: alerts for changes between two readings. Pure except for its memory."""

    def __init__(self) -> None:
        self._was_active: set[str] = set()
        self._counters = Counters()
        self._judged_at: float | None = None

    @property
    def has_seen_any(self) -> bool:
        return bool(self._was_active)

    def judge(self, ports: list[Port], now: float) -> list[Alert]:
        interval_s = None if self._judged_at is None else max(now - self._judged_at, EVERY_S / 2)
        self._judged_at = now
        alerts = [self._down(port, now) for port in ports if self._is_down(port)]
        present = {port.name for port in ports}
        for name in sorted(self._was_active - present):
            alerts.append(_alert("ES-M10", name, f"port {name} is gone; it was active", now))
        for port in ports:
            grown = {name: self._counters.grown(f"{port.name} {name}", value) for name, value in port.counters.items()}
            if interval_s is not None:
                alerts += _growth(port, grown, interval_s, now)
        self._was_active |= {port.name for port in ports if port.state == _ACTIVE}
        return alerts

    def _is_down(self, port: Port) -> bool:
        return bool(port.state) and port.state != _ACTIVE and port.name in self._was_active

    def _down(self, port: Port, now: float) -> Alert:
        physical = f", physically {port.physical}" if port.physical else ""
        return _alert("ES-M10", port.name, f"port {port.name} is {port.state}{physical}; it was active", now)


def _growth(port: Port, grown: dict[str, int], interval_s: float, now: float) -> list[Alert]:
    alerts = []
    flaps = grown.pop(_FLAPS, 0)
    if flaps:
        times = "once" if flaps == 1 else f"{flaps} times"
        alerts.append(_alert("ES-M11", port.name, f"the link of port {port.name} went down {times}", now, flaps))
    over = {name: value for name, value in grown.items() if value > LIMITS_PER_S[name] * interval_s}
    if over:
        text = ", ".join(f"{name} +{value}" for name, value in over.items())
        what = f"port {port.name} counts errors: {text} in {interval_s:.0f} s"
        alerts.append(_alert("ES-M12", port.name, what, now))
    return alerts


def _alert(code: str, device: str, sentence: str, now: float, count: int = 1) -> Alert:
    return alert(code, sentence, at=now, source=Infiniband.name, device=device, count=count)


def _word(text: str | None) -> str:
    """The word in the kernel's "4: ACTIVE"."""
    return text.rpartition(":")[2].strip() if text else ""
