"""Network interfaces: down, flapping, damaged and dropped packets, from /sys/class/net.

Interfaces that software makes come and go with it, and are left out. An interface that was never up is unused.
"""

from pathlib import Path

import msgspec

from everstep.linux.nics import own_interfaces
from everstep.model.facts import Alert
from everstep.probes.sense import Counters, UnsupportedError, alert, read_int, read_text

EVERY_S = 5.0
ERRORS_PER_S = 10.0
DROPS_PER_S = 100.0
"""Every host drops a few packets per second, of protocols that it does not support."""
DROP_LOOKS = 3
_ERRORS = ("rx_errors", "tx_errors")
_DROPS = ("rx_dropped", "tx_dropped")
_IFF_UP = 1


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    """One interface at one moment. None: unknown."""

    name: str
    is_up: bool | None
    state: str = ""
    carrier_changes: int | None = None
    errors: int | None = None
    drops: int | None = None


def read_interfaces(sys: Path) -> list[Interface]:
    """Interfaces that belong to the machine, or to the pod."""
    return [_read(sys / "class/net" / name, name) for name in sorted(own_interfaces(sys))]


def _read(path: Path, name: str) -> Interface:
    state = read_text(path / "operstate") or ""
    return Interface(
        name=name,
        is_up=_is_up(path, state),
        state=state,
        carrier_changes=read_int(path / "carrier_changes"),
        errors=_sum(path, _ERRORS),
        drops=_sum(path, _DROPS),
    )


def _is_up(path: Path, state: str) -> bool | None:
    if state == "unknown":  # the driver does not report it; the carrier does
        flags, carrier = read_int(path / "flags"), read_int(path / "carrier")
        if flags is None or not flags & _IFF_UP:
            return None if flags is None else False
        return None if carrier is None else carrier == 1
    return state == "up" if state else None


def _sum(path: Path, names: tuple[str, ...]) -> int | None:
    values = [read_int(path / "statistics" / name) for name in names]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


class Interfaces:
    """The sense for network interfaces."""

    name = "interfaces"
    every_s = EVERY_S

    def __init__(self, sys: Path = Path("/sys")) -> None:
        self._sys = sys
        self._watch = InterfaceWatch()

    def look(self, now: float) -> list[Alert]:
        found = read_interfaces(self._sys)
        if not found and not self._watch.has_seen_any:
            raise UnsupportedError(f"no network interface of the machine in {self._sys / 'class/net'}")
        return self._watch.judge(found, now)

    def close(self) -> None:
        return


class InterfaceWatch:
    """The rule: alerts for changes between two readings. Pure except for its memory."""

    def __init__(self) -> None:
        self._was_up: set[str] = set()
        self._counters = Counters()
        self._judged_at: float | None = None
        self._dropping: dict[str, int] = {}

    @property
    def has_seen_any(self) -> bool:
        return bool(self._was_up)

    def judge(self, found: list[Interface], now: float) -> list[Alert]:
        interval_s = None if self._judged_at is None else max(now - self._judged_at, EVERY_S / 2)
        self._judged_at = now
        alerts = []
        for one in found:
            if one.is_up is False and one.name in self._was_up:
                alerts.append(_alert("ES-M13", one.name, f"interface {one.name} is {one.state}; it was up", now))
            if interval_s is not None:
                alerts += self._flaps(one, now)
                alerts += self._packets(one, interval_s, now)
            else:
                for name, value in _counted(one).items():
                    self._counters.grown(name, value)
        for name in sorted(self._was_up - {one.name for one in found}):
            alerts.append(_alert("ES-M13", name, f"interface {name} is gone; it was up", now))
        self._was_up |= {one.name for one in found if one.is_up}
        return alerts

    def _flaps(self, one: Interface, now: float) -> list[Alert]:
        """Down and up again are two changes of the carrier; a single change is reported as down."""
        changes = self._counters.grown(f"{one.name} carrier", one.carrier_changes)
        flaps = changes // 2
        if not flaps or one.name not in self._was_up:
            return []
        times = "once" if flaps == 1 else f"{flaps} times"
        what = f"interface {one.name} lost its carrier and got it back {times}"
        return [_alert("ES-M14", one.name, what, now, flaps)]

    def _packets(self, one: Interface, interval_s: float, now: float) -> list[Alert]:
        alerts = []
        errors = self._counters.grown(f"{one.name} errors", one.errors)
        drops = self._counters.grown(f"{one.name} drops", one.drops)
        if errors > ERRORS_PER_S * interval_s:
            what = f"interface {one.name} counts {errors} damaged packets in {interval_s:.0f} s"
            alerts.append(_alert("ES-M15", one.name, what, now))
        many = drops > DROPS_PER_S * interval_s
        self._dropping[one.name] = self._dropping.get(one.name, 0) + 1 if many else 0
        if self._dropping[one.name] >= DROP_LOOKS:
            what = f"interface {one.name} drops packets: {drops} in {interval_s:.0f} s, and still does"
            alerts.append(_alert("ES-M15", one.name, what, now))
        return alerts


def _counted(one: Interface) -> dict[str, int | None]:
    return {
        f"{one.name} carrier": one.carrier_changes,
        f"{one.name} errors": one.errors,
        f"{one.name} drops": one.drops,
    }


def _alert(code: str, device: str, sentence: str, now: float, count: int = 1) -> Alert:
    return alert(code, sentence, at=now, source=Interfaces.name, device=device, count=count)
