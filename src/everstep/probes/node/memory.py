"""Main memory: what is left on the machine and in our cgroup, kills by the OOM killer there, and pressure (PSI)."""

import os
import re
from pathlib import Path

from everstep.linux.proc import parse_sizes
from everstep.model.facts import Alert
from everstep.probes.oom import memory_cgroup
from everstep.probes.sense import Counters, UnsupportedError, alert, read_text

EVERY_S = 10.0
LEAST_SHARE = 0.02
PRESSURE_PERCENT = {"memory": 20.0, "io": 80.0}
"""Percent of the last minute in which no task at all could run. A checkpoint to a slow disk comes near the second."""
_FULL = re.compile(r"^full .*\bavg60=(\d{1,3}(?:\.\d+)?)(?: |$)", re.MULTILINE)


class Memory:
    """The sense for free memory, on the machine and in the cgroup of this process."""

    name = "memory"
    every_s = EVERY_S

    def __init__(self, proc: Path = Path("/proc"), pid: int | None = None) -> None:
        self._proc = proc
        self._pid = os.getpid() if pid is None else pid
        self._kills = Counters()

    def look(self, now: float) -> list[Alert]:
        share = available_share(read_text(self._proc / "meminfo") or "")
        if share is None:
            raise UnsupportedError(f"{self._proc / 'meminfo'} does not show how much memory is available")
        alerts = []
        if share < LEAST_SHARE:
            what = f"{100 * share:.1f} % of the machine's memory is available"
            alerts.append(self._say("ES-M30", "machine", what, now))
        return alerts + self._cgroup(now)

    def close(self) -> None:
        return

    def _cgroup(self, now: float) -> list[Alert]:
        cgroup = memory_cgroup(self._pid)
        if cgroup is None:
            return []
        kills = self._kills.grown(str(cgroup.path), cgroup.num_kills())
        if kills:
            what = f"the kernel ended {kills} processes in cgroup {cgroup.path} for lack of memory"
            return [self._say("ES-M32", str(cgroup.path), what, now, kills)]
        limit, room = _limit_bytes(cgroup.path), cgroup.room_bytes(cgroup.path)
        if limit and room is not None and room < limit * LEAST_SHARE:
            what = f"cgroup {cgroup.path} has {room / (1 << 20):.0f} of {limit / (1 << 20):.0f} MiB left"
            return [self._say("ES-M30", str(cgroup.path), what, now)]
        return []

    def _say(self, code: str, device: str, sentence: str, now: float, count: int = 1) -> Alert:
        return alert(code, sentence, at=now, source=self.name, device=device, count=count)


class Pressure:
    """The sense for PSI."""

    name = "pressure"
    every_s = EVERY_S

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._folder = proc / "pressure"

    def look(self, now: float) -> list[Alert]:
        shares = {kind: full_percent(read_text(self._folder / kind) or "") for kind in PRESSURE_PERCENT}
        if all(share is None for share in shares.values()):
            raise UnsupportedError("the kernel has no pressure stall information (CONFIG_PSI, psi=1)")
        alerts = []
        for kind, share in shares.items():
            if share is not None and share > PRESSURE_PERCENT[kind]:
                wait = "memory" if kind == "memory" else "input and output"
                what = f"all tasks waited for {wait} {share:.0f} % of the last minute"
                alerts.append(alert("ES-M31", what, at=now, source=self.name, device=kind))
        return alerts

    def close(self) -> None:
        return


def available_share(meminfo: str) -> float | None:
    values = parse_sizes(meminfo)
    total, available = values.get("MemTotal"), values.get("MemAvailable")
    return available / total if total and available is not None else None


def full_percent(pressure: str) -> float | None:
    match = _FULL.search(pressure)
    return float(match[1]) if match else None


def _limit_bytes(folder: Path) -> int | None:
    text = read_text(folder / "memory.max") or read_text(folder / "memory.limit_in_bytes") or ""
    return int(text) if text.isdigit() and int(text) < 1 << 60 else None
