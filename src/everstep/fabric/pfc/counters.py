"""Recorded counters of a switch's ports, one JSON object a line: times, packets sent, pauses received, queue length.

`{"at": 12.2, "switch": "leaf0", "port": "Ethernet8", "priority": 3, "tx_packets": 9, "rx_pause": 4, "queue_bytes": 80}`
or SONiC's names: SAI_QUEUE_STAT_PACKETS, SAI_PORT_STAT_PFC_3_RX_PKTS, SAI_QUEUE_STAT_CURR_OCCUPANCY_BYTES,
SAI_PORT_STAT_PFC_3_RX_PAUSE_DURATION_US. A value that a line lacks is unknown.
"""

import json
import math
from typing import Any

import msgspec

from everstep.fabric.topology.values import FabricError

_WIDTHS = (1 << 32, 1 << 64)
_NEAR = 0.1
"""A counter wrapped if it went from the last tenth of its width to the first; else it was cleared."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    at: float  # seconds, of any clock
    switch: str
    port: str
    priority: int
    tx_packets: int | None = None
    rx_pause: int | None = None
    queue_bytes: int | None = None
    pause_us: int | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        return self.switch, self.port, self.priority


def increase(before: int | None, now: int | None) -> int | None:
    """Increase of a counter. None: a value is unknown, or the counter was cleared."""
    if before is None or now is None or before < 0 or now < 0:
        return None
    if now >= before:
        return now - before
    for width in _WIDTHS:
        if width * (1 - _NEAR) <= before < width:
            return now + width - before if now <= width * _NEAR else None
    return None


def read_samples(text: str, source: str) -> list[Sample]:
    """Samples in the order of the file. Raises FabricError for a bad line."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            given = json.loads(line)
        except (ValueError, RecursionError):
            raise FabricError(f"{source}:{number}: not JSON: {line[:60]!r}") from None
        found.append(_sample(given, f"{source}:{number}"))
    return found


def _sample(given: Any, where: str) -> Sample:  # noqa: ANN401 - what JSON can hold
    if not isinstance(given, dict):
        raise FabricError(f"{where}: must be an object")
    at, priority = given.get("at"), given.get("priority")
    if not isinstance(at, int | float) or isinstance(at, bool) or not math.isfinite(at):
        raise FabricError(f"{where}: 'at' must be a time in seconds")
    if not isinstance(priority, int) or isinstance(priority, bool) or not 0 <= priority <= 7:
        raise FabricError(f"{where}: 'priority' must be from 0 to 7")
    if not isinstance(given.get("switch"), str) or not isinstance(given.get("port"), str):
        raise FabricError(f"{where}: needs 'switch' and 'port'")
    pfc = f"SAI_PORT_STAT_PFC_{priority}"
    return Sample(
        at=float(at),
        switch=given["switch"],
        port=given["port"],
        priority=priority,
        tx_packets=_count(given, "tx_packets", "SAI_QUEUE_STAT_PACKETS"),
        rx_pause=_count(given, "rx_pause", f"{pfc}_RX_PKTS"),
        queue_bytes=_count(given, "queue_bytes", "SAI_QUEUE_STAT_CURR_OCCUPANCY_BYTES"),
        pause_us=_count(given, "pause_us", f"{pfc}_RX_PAUSE_DURATION_US"),
    )


def _count(given: dict[str, Any], *names: str) -> int | None:
    """SONiC prints numbers as text."""
    value = next((given[name] for name in names if name in given), None)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 25:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
