"""Disks: requests that do not end, from /sys/block/*/stat; and the drives' own health reports, from smartctl."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from everstep.model.facts import Alert
from everstep.probes.node.command import output_of
from everstep.probes.sense import UnsupportedError, alert, names_in, read_text

EVERY_S = 10.0
STALLED_S = 30.0
"""Time with requests in flight and none finished. A busy drive finishes thousands; a slow network disk finishes one in
seconds; the kernel's own limit for a request is 30 s."""
STALLED_LOOKS = 3
"""Looks that must agree after the first: after an hour's pause of the machine, a healthy disk has waited too."""
SMART_EVERY_S = 3600.0
_VIRTUAL = re.compile(r"loop|ram|zram|dm-|md|fd|sr|nbd")
"""Loop and mapper devices use other disks, which are listed themselves."""


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    num_done: int  # requests finished, of all kinds
    num_in_flight: int


def read_disks(folder: Path) -> list[Disk]:
    """The disks of a folder like /sys/block."""
    disks = []
    for name in names_in(folder):
        if _VIRTUAL.match(name):
            continue
        words = (read_text(folder / name / "stat") or "").split()
        if len(words) >= 11 and all(word.isdigit() for word in words):
            values = [int(word) for word in words]
            done = values[0] + values[4] + sum(values[at] for at in (11, 15) if at < len(values))
            disks.append(Disk(name=name, num_done=done, num_in_flight=values[8]))
    return disks


class _Wait(msgspec.Struct):
    """A disk with requests in flight that finishes none, since the first such look."""

    num_done: int
    since: float
    num_looks: int = 0


class Disks:
    """The sense for requests that do not end."""

    name = "disks"
    every_s = EVERY_S

    def __init__(self, sys: Path = Path("/sys"), monotonic: Callable[[], float] = time.monotonic) -> None:
        self._folder = sys / "block"
        self._monotonic = monotonic  # setting the wall clock must not make a disk look stalled
        self._waiting: dict[str, _Wait] = {}

    def look(self, now: float) -> list[Alert]:
        disks = read_disks(self._folder)
        if not disks:
            raise UnsupportedError(f"no disk in {self._folder}")
        return [found for disk in disks if (found := self._judge(disk, now)) is not None]

    def close(self) -> None:
        return

    def _judge(self, disk: Disk, now: float) -> Alert | None:
        """If two looks show requests in flight and the same number done, the requests of the first look did not end."""
        wait = self._waiting.get(disk.name)
        if not disk.num_in_flight:
            self._waiting.pop(disk.name, None)
            return None
        if wait is None or disk.num_done != wait.num_done:
            self._waiting[disk.name] = _Wait(num_done=disk.num_done, since=self._monotonic())
            return None
        wait.num_looks += 1
        waited_s = self._monotonic() - wait.since
        if waited_s < STALLED_S or wait.num_looks < STALLED_LOOKS:
            return None
        what = f"disk {disk.name} has {disk.num_in_flight} requests in flight and finished none for {waited_s:.0f} s"
        return alert("ES-M22", what, at=now, source=self.name, device=disk.name)


class Smart:
    """The sense for the drives' own health reports."""

    name = "smart"
    every_s = SMART_EVERY_S

    def __init__(self, sys: Path = Path("/sys"), smartctl: str = "smartctl") -> None:
        self._folder = sys / "block"
        self._smartctl = smartctl

    def look(self, now: float) -> list[Alert]:
        names = [disk.name for disk in read_disks(self._folder)]
        alerts: list[Alert] = []
        untold = []
        for name in names:
            report = parse_smart(output_of([self._smartctl, "-j", "-H", "-A", f"/dev/{name}"]))
            why = failing(report) if report else None
            if why is None:
                untold.append(name)
            elif why:
                alerts.append(alert("ES-M23", f"disk {name}: {why}", at=now, source=self.name, device=name))
        if len(untold) == len(names):
            raise UnsupportedError("no drive of this node has SMART, or it may not be read")
        return alerts

    def close(self) -> None:
        return


def parse_smart(output: bytes) -> dict[str, Any]:
    """Empty for anything that is not smartctl's JSON."""
    try:
        report = json.loads(output)
    except (ValueError, RecursionError):
        return {}
    return report if isinstance(report, dict) else {}


def failing(report: dict[str, Any]) -> str | None:
    """Why the drive fails; empty: it does not; None: the report does not say."""
    status = report.get("smart_status")
    passed = status.get("passed") if isinstance(status, dict) else None
    log = report.get("nvme_smart_health_information_log")
    if isinstance(log, dict):
        warning, spare, least = (
            log.get(key) for key in ("critical_warning", "available_spare", "available_spare_threshold")
        )
        if isinstance(spare, int) and isinstance(least, int) and spare < least:
            return f"{spare} % of its spare blocks are left; {least} % is the least"
        if isinstance(warning, int) and warning:
            return f"its critical warning is {warning:#04x}"
    if passed is False:
        return "its own check (SMART) says that it fails"
    return "" if passed is True else None
