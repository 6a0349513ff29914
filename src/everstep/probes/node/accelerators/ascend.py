"""Ascend NPUs through the table that `npu-smi info` prints: two lines per chip, the vendor's own health in the first.

Not tested on a real machine: the format is that of the tool's documentation.
"""

import re

from everstep.probes.node.accelerators.accelerators import Device
from everstep.probes.node.command import output_of
from everstep.probes.sense import UnsupportedError

NPU_SMI = ("npu-smi", "info")

_FIRST = re.compile(r"\|\s*(\d{1,4})\s+(\S+)\s*\|\s*([A-Za-z_/]+)\s*\|\s*([\d.]+|NA|-)\s+([\d.]+|NA|-)\s")
_SECOND = re.compile(r"\|\s*(\d{1,4})(?:\s+\d{1,4})?\s*\|\s*([0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})\.\w\s*\|")
_HEALTHY = "OK"
_UNHEALTHY = ("ALARM", "CRITICAL")
"""The tool's WARNING is not urgent, so it is not in the list."""
_UNTOLD = ("UNKNOWN", "NA", "N/A")


class Ascend:
    """The vendor of `Accelerators`."""

    name = "npu-smi"
    component = "npu"

    def read(self) -> list[Device]:
        return parse_npu_smi(output_of(NPU_SMI))

    def close(self) -> None:
        return


def parse_npu_smi(output: bytes) -> list[Device]:
    """The devices in the table. Raises UnsupportedError if there is none."""
    devices: list[Device] = []
    first: re.Match[str] | None = None
    for line in output.decode("utf-8", "replace").splitlines():
        if found := _FIRST.match(line):
            first = found
        elif first is not None and (second := _SECOND.match(line)):
            devices.append(_device(first, second))
    if not devices:
        raise UnsupportedError("npu-smi lists no NPU")
    return devices


def _device(first: re.Match[str], second: re.Match[str]) -> Device:
    health = first[3].upper()
    return Device(
        name=f"NPU {first[1]} chip {second[1]}",
        bus=second[2].lower(),
        is_healthy=True if health == _HEALTHY else False if health in _UNHEALTHY else None,
        problem="" if health == _HEALTHY or health in _UNTOLD else f"health {first[3]}",
        power_w=_number(first[4]),
        temperature_c=_number(first[5]),
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
