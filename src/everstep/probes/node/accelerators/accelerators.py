"""GPUs and NPUs of any vendor: their drivers' readings, and the alerts that follow from them.

A vendor's module reads `Device`s (None is "unknown"); the rules here are the same for all. A device that was present
and is gone, or does not answer, is lost. A counter is an alert only if it grows between two looks.
"""

from typing import Protocol

import msgspec

from everstep.model.facts import Alert
from everstep.probes.sense import Counters, alert

EVERY_S = 10.0
SLOW_LOOKS = 3
"""Looks in a row with a lowered clock before an alert: short dips are how a power limit works."""
MISSING_LOOKS = 2
"""Looks without a device before it counts as lost: a look may come while a driver restarts."""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One accelerator at one moment."""

    name: str  # "GPU 3"
    bus: str = ""  # "0000:91:00", as kernel lines write it
    is_lost: bool = False
    is_healthy: bool | None = None  # the vendor's own opinion
    problem: str = ""  # ... and its words; for a healthy device, a warning of the vendor
    temperature_c: float | None = None
    limit_c: float | None = None  # above it the device slows itself down
    power_w: float | None = None
    power_limit_w: float | None = None
    clock_mhz: float | None = None
    slowed_by: tuple[str, ...] | None = None  # hardware reasons only; the low clock of an idle GPU is not one
    uncorrectable: int | None = None  # cumulative
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    links: dict[int, bool] = {}  # link -> active
    link_errors: dict[str, int] = {}  # "link 2 CRC" -> cumulative

    @property
    def key(self) -> str:
        return self.bus or self.name.lower()

    @property
    def title(self) -> str:
        return f"{self.name} ({self.bus})" if self.bus else self.name


class Vendor(Protocol):
    """Reads all devices of one vendor."""

    name: str
    component: str  # component of its alerts, as in `knowledge`

    def read(self) -> list[Device]:
        """Raises UnsupportedError when there is no such device, driver or tool."""
        ...

    def close(self) -> None: ...


class Accelerators:
    """The sense for accelerators; one per vendor."""

    def __init__(self, vendor: Vendor, every_s: float = EVERY_S) -> None:
        self.name = vendor.name
        self.every_s = every_s
        self._vendor = vendor
        self._counters = Counters()
        self._known: dict[str, Device] = {}
        self._missing: dict[str, int] = {}
        self._slow: dict[str, int] = {}
        self._active_links: set[tuple[str, int]] = set()

    def look(self, now: float) -> list[Alert]:
        devices = {device.key: device for device in self._vendor.read()}
        alerts = self._lost(devices, now)
        for device in devices.values():
            if not device.is_lost:
                alerts += self._memory(device, now) + self._heat(device, now) + self._links(device, now)
                alerts += self._opinion(device, now)
        self._known.update({key: device for key, device in devices.items() if not device.is_lost})
        return alerts

    def close(self) -> None:
        self._vendor.close()

    def _lost(self, devices: dict[str, Device], now: float) -> list[Alert]:
        alerts = []
        for device in devices.values():
            if device.is_lost:
                alerts.append(self._say("ES-M06", device, "is lost: its driver cannot reach it any more", now))
        for key, device in self._known.items():
            self._missing[key] = 0 if key in devices else self._missing.get(key, 0) + 1
            if self._missing[key] >= MISSING_LOOKS:
                alerts.append(self._say("ES-M06", device, "is gone from the list of devices", now))
        return alerts

    def _opinion(self, device: Device, now: float) -> list[Alert]:
        if device.is_healthy is not False and not device.problem:
            return []
        words = f": {device.problem}" if device.problem else ""
        if device.is_healthy is False:
            return [self._say("ES-M09", device, f"is called unhealthy by {self.name}{words}", now)]
        return [self._say("ES-M09", device, f"has a warning of {self.name}{words}", now, severity="warning")]

    def _memory(self, device: Device, now: float) -> list[Alert]:
        alerts = []
        grown = self._counters.grown(f"{device.key} uncorrectable", device.uncorrectable)
        if grown:
            times = "an uncorrectable memory error" if grown == 1 else f"{grown} uncorrectable memory errors"
            alerts.append(self._say("ES-M01", device, f"had {times}", now, grown))
        if device.remap_failed:
            alerts.append(self._say("ES-M02", device, "could not replace a broken memory row by a spare one", now))
        elif device.remap_pending:
            alerts.append(self._say("ES-M03", device, "has a memory row to be replaced at its next reset", now))
        return alerts

    def _heat(self, device: Device, now: float) -> list[Alert]:
        alerts = []
        self._slow[device.key] = self._slow.get(device.key, 0) + 1 if device.slowed_by else 0
        if device.slowed_by and self._slow[device.key] >= SLOW_LOOKS:
            clock = f", clock now {device.clock_mhz:.0f} MHz" if device.clock_mhz is not None else ""
            alerts.append(self._say("ES-M04", device, f"is slowed down by {', '.join(device.slowed_by)}{clock}", now))
        if device.temperature_c is not None and device.limit_c is not None and device.temperature_c >= device.limit_c:
            heat = f"is at {device.temperature_c:.0f} °C; it slows down at {device.limit_c:.0f} °C"
            alerts.append(self._say("ES-M07", device, heat, now))
        return alerts

    def _links(self, device: Device, now: float) -> list[Alert]:
        alerts = []
        for link, active in device.links.items():
            if active:
                self._active_links.add((device.key, link))
            elif (device.key, link) in self._active_links:
                alerts.append(self._say("ES-M05", device, f"lost its link {link}, which was active", now))
        for name, value in device.link_errors.items():
            grown = self._counters.grown(f"{device.key} {name}", value)
            if grown:
                alerts.append(self._say("ES-M08", device, f"counts {grown} more errors on {name}", now, grown))
        return alerts

    def _say(self, code: str, device: Device, what: str, now: float, count: int = 1, *, severity: str = "") -> Alert:
        return alert(
            code,
            f"{device.title} {what}",
            at=now,
            source=self.name,
            device=device.key,
            severity=severity,
            component=self._vendor.component,
            count=count,
        )
