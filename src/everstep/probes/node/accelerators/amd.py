"""AMD GPUs through amd-smi, or rocm-smi if only that is installed. Both print JSON; the keys differ by version.

Not tested on a real machine: the formats are those of the tools' documentation.
"""

import json
from typing import Any

from everstep.probes.node.accelerators.accelerators import Device
from everstep.probes.node.command import output_of
from everstep.probes.sense import UnsupportedError

AMD_SMI = ("amd-smi", "metric", "--json")
ROCM_SMI = ("rocm-smi", "--showtemp", "--showpower", "--showbus", "--showrasinfo", "all", "--json")


class Amd:
    """The vendor of `Accelerators`."""

    name = "amd-smi"
    component = "gpu_amd"

    def read(self) -> list[Device]:
        try:
            return parse_amd_smi(output_of(AMD_SMI))
        except UnsupportedError as error:
            try:
                return parse_rocm_smi(output_of(ROCM_SMI))
            except UnsupportedError as other:
                raise UnsupportedError(f"{error}; {other}") from other

    def close(self) -> None:
        return


def parse_amd_smi(output: bytes) -> list[Device]:
    """Raises UnsupportedError for anything that is not its format."""
    entries = _json(output, "amd-smi")
    if isinstance(entries, dict):
        entries = entries.get("gpu_data", [])
    devices = [_device(entry) for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    if not devices:
        raise UnsupportedError("amd-smi lists no GPU")
    return devices


def _device(entry: dict[str, Any]) -> Device:
    temperature, power, ecc = (_table(entry, key) for key in ("temperature", "power", "ecc"))
    return Device(
        name=f"GPU {entry.get('gpu', '?')}",
        bus=_bus(_table(entry, "bus").get("bdf", "") or entry.get("bdf", "")),
        temperature_c=_number(temperature.get("hotspot")) or _number(temperature.get("edge")),
        power_w=_number(power.get("socket_power")),
        slowed_by=_slowed_by(power.get("throttle_status")),
        uncorrectable=_whole(ecc.get("total_uncorrectable_count")),
    )


def parse_rocm_smi(output: bytes) -> list[Device]:
    """Raises UnsupportedError for anything that is not its format."""
    cards = _json(output, "rocm-smi")
    devices = []
    for name, card in sorted(cards.items()) if isinstance(cards, dict) else ():
        if name.startswith("card") and isinstance(card, dict):
            devices.append(_card(name, card))
    if not devices:
        raise UnsupportedError("rocm-smi lists no GPU")
    return devices


def _card(name: str, card: dict[str, Any]) -> Device:
    def find(*words: str) -> object:
        return next((value for key, value in card.items() if all(word in key.lower() for word in words)), None)

    return Device(
        name=f"GPU {name.removeprefix('card')}",
        bus=_bus(find("pci bus")),
        temperature_c=_number(find("temperature", "junction")) or _number(find("temperature", "edge")),
        power_w=_number(find("power", "(w)")),
        uncorrectable=_whole(find("uncorrectable")),
    )


def _json(output: bytes, tool: str) -> Any:  # noqa: ANN401
    try:
        return json.loads(output)
    except (ValueError, RecursionError) as error:
        raise UnsupportedError(f"{tool} printed no JSON: {output[:80].decode('utf-8', 'replace')!r}") from error


def _table(entry: dict[str, Any], key: str) -> dict[str, Any]:
    value = entry.get(key)
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float | None:
    """A number from 70, "70.0" or {"value": 70, "unit": "C"}; None for "N/A"."""
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None or number != number or number < 0 else int(number)


def _slowed_by(status: object) -> tuple[str, ...] | None:
    if not isinstance(status, str) or status in ("", "N/A"):
        return None
    return () if status.upper() in ("UNTHROTTLED", "NONE") else (f"throttling ({status})",)


def _bus(value: object) -> str:
    """The bus address in the form of kernel lines: 0000:c1:00 for 0000:C1:00.0."""
    return value.lower().partition(".")[0] if isinstance(value, str) else ""
