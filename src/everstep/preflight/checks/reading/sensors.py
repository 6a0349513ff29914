"""Temperatures, fans, power and voltages that the kernel knows of: hwmon and thermal zones."""

from collections.abc import Iterator

from everstep.preflight.result import Better, Result, Yielded, measured, unsupported
from everstep.preflight.settings import Settings
from everstep.preflight.sources import names_in, parts, text_of

_HWMON, _THERMAL = "/sys/class/hwmon", "/sys/class/thermal"
_KINDS = (
    ("temp", "celsius", 1e-3), ("fan", "rpm", 1.0), ("power", "watt", 1e-6), ("in", "volt", 1e-3),
    ("curr", "ampere", 1e-3),
)  # fmt: skip


def measure(settings: Settings) -> Iterator[Yielded]:
    """Also for `light`."""
    root = settings.root
    chips = names_in(root, _HWMON)
    zones = [name for name in names_in(root, _THERMAL) if name.startswith("thermal_zone")]
    if not chips:
        yield unsupported("sensors.chips", f"{_HWMON} is empty (usual in a virtual machine)")
    if not zones:
        yield unsupported("sensors.zones", f"{_THERMAL} has no thermal zone (usual in a virtual machine)")
    yield from parts("sensors", *(_chip(root, chip) for chip in chips), *(_zone(root, zone) for zone in zones))


def _chip(root: str, chip: str) -> Iterator[Result]:
    base = f"{_HWMON}/{chip}"
    title = text_of(root, f"{base}/name") or chip
    files = names_in(root, base)
    for kind, unit, factor in _KINDS:
        for file in files:
            number = file.removeprefix(kind).removesuffix("_input")
            if file != f"{kind}{number}_input" or not number.isdigit():
                continue
            label = (text_of(root, f"{base}/{kind}{number}_label") or f"{kind}{number}").replace(" ", "_")
            name = f"sensors.{chip}.{title}.{label}"
            value = _number(root, f"{base}/{file}", factor)
            if value is None:
                yield unsupported(name, f"{base}/{file} cannot be read", unit, device=title)
                continue
            yield measured(name, value, unit, how=f"read {base}/{file}", better=Better.ANY, device=title)
            critical = _number(root, f"{base}/{kind}{number}_crit", factor)
            if kind == "temp" and critical and critical > 0:
                how = f"{file} by temp{number}_crit of {chip}"
                yield measured(f"{name}.margin_used", value / critical, "ratio", how=how, device=title)


def _zone(root: str, zone: str) -> Iterator[Result]:
    title = text_of(root, f"{_THERMAL}/{zone}/type") or zone
    value = _number(root, f"{_THERMAL}/{zone}/temp", 1e-3)
    name = f"sensors.{zone}.{title}"
    if value is None:
        yield unsupported(name, f"{_THERMAL}/{zone}/temp cannot be read", "celsius", device=title)
    else:
        yield measured(name, value, "celsius", how=f"read {_THERMAL}/{zone}/temp", device=title)


def _number(root: str, path: str, factor: float) -> float | None:
    try:
        return float(text_of(root, path) or "") * factor
    except ValueError:
        return None
