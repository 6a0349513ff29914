"""Errors of main memory and machine checks: EDAC counters in /sys, the count of machine-check exceptions in /proc.

Corrected errors are reported if a module has many in an hour; uncorrected ones always are.
"""

import collections
from pathlib import Path

import msgspec

from everstep.model.facts import Alert
from everstep.probes.sense import Counters, UnsupportedError, alert, names_in, read_int, read_text

EVERY_S = 10.0
CORRECTED_PER_HOUR = 10
"""A good module has a few per year, a failing one hundreds per hour."""
_HOUR_S = 3600.0
INTERRUPTS_EVERY_S = 60.0
"""/proc/interrupts is long on a machine with many CPUs."""


class Module(msgspec.Struct, frozen=True, kw_only=True):
    """A memory module, or a whole controller if its modules are not counted separately."""

    name: str
    corrected: int | None
    uncorrected: int | None


def read_modules(folder: Path) -> list[Module]:
    """Modules of a folder like /sys/devices/system/edac/mc."""
    modules = []
    for controller in names_in(folder):
        if not controller.startswith("mc"):
            continue
        path = folder / controller
        units = [name for name in names_in(path) if name.startswith(("dimm", "rank"))]
        for unit in units:
            label = read_text(path / unit / "dimm_label") or unit
            corrected, uncorrected = (read_int(path / unit / f"dimm_{kind}_count") for kind in ("ce", "ue"))
            modules.append(Module(name=f"{controller}/{label}", corrected=corrected, uncorrected=uncorrected))
        # The controller's own sums also count errors that no module could be found for.
        modules.append(
            Module(
                name=controller,
                corrected=read_int(path / "ce_noinfo_count") if units else read_int(path / "ce_count"),
                uncorrected=read_int(path / "ue_noinfo_count") if units else read_int(path / "ue_count"),
            )
        )
    return modules


class MemoryErrors:
    """The sense for memory errors and machine checks."""

    name = "edac"
    every_s = EVERY_S

    def __init__(self, sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> None:
        self._folder = sys / "devices" / "system" / "edac" / "mc"
        self._interrupts = proc / "interrupts"
        self._counters = Counters()
        self._corrected: dict[str, collections.deque[tuple[float, int]]] = {}
        self._interrupts_due = float("-inf")

    def look(self, now: float) -> list[Alert]:
        alerts = self._exceptions(now)
        modules = read_modules(self._folder)
        if not modules and not alerts:
            raise UnsupportedError("no EDAC driver counts memory errors on this node")
        for module in modules:
            alerts += self._judge(module, now)
        return alerts

    def close(self) -> None:
        return

    def _judge(self, module: Module, now: float) -> list[Alert]:
        alerts = []
        uncorrected = self._counters.grown(f"{module.name} ue", module.uncorrected)
        if uncorrected:
            what = f"memory {module.name} had {uncorrected} uncorrected errors"
            alerts.append(self._say("ES-M21", module.name, what, now, uncorrected))
        corrected = self._counters.grown(f"{module.name} ce", module.corrected)
        recent = self._corrected.setdefault(module.name, collections.deque())
        if corrected:
            recent.append((now, corrected))
        while recent and now - recent[0][0] > _HOUR_S:
            recent.popleft()
        total = sum(number for _, number in recent)
        if corrected and total >= CORRECTED_PER_HOUR:
            what = f"memory {module.name} had {total} corrected errors within an hour"
            alerts.append(self._say("ES-M20", module.name, what, now, corrected))
        return alerts

    def _exceptions(self, now: float) -> list[Alert]:
        if now < self._interrupts_due:
            return []
        self._interrupts_due = now + INTERRUPTS_EVERY_S
        grown = self._counters.grown("mce", machine_checks(read_text(self._interrupts) or ""))
        if not grown:
            return []
        what = f"the CPUs raised {grown} machine-check exceptions"
        return [self._say("ES-M27", "cpu", what, now, grown)]

    def _say(self, code: str, device: str, sentence: str, now: float, count: int) -> Alert:
        return alert(code, sentence, at=now, source=self.name, device=device, count=count)


def machine_checks(interrupts: str) -> int | None:
    """Sum over all CPUs of the row MCE of /proc/interrupts; None without such a row."""
    for line in interrupts.splitlines():
        name, _, rest = line.strip().partition(":")
        if name == "MCE":
            return sum(int(word) for word in rest.split() if word.isdigit())
    return None
