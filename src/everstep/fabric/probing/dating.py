"""Arrival times of packets: the kernel's wall-clock stamps, converted to the monotonic clock of this host."""

import socket
import struct
import time
from collections.abc import Callable, Iterable

TIMESTAMPNS = 35
"""SO_TIMESTAMPNS of most Linux architectures; Python has no name for it."""

_TIMESPEC = struct.Struct("@qq")
ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)
_LOOKS = 5
_QUICK_NS = 50_000
"""Longest time of a quick look: this process kept its CPU meanwhile, and the offset is exact enough."""
_STEP_NS = 2_000_000
"""Disciplined clocks drift by less between two looks one second apart; more is a step of the wall clock."""

Clock = Callable[[], int]


class Dating:
    """Dates packets of sockets that are read together. Call `look` before reading, then `date_us` for each packet."""

    def __init__(self, monotonic: Clock = time.monotonic_ns, wall: Clock = time.time_ns) -> None:
        self._monotonic, self._wall = monotonic, wall
        self._offset, self._looked = self._offset_now()
        self._is_usable = True

    def look(self) -> None:
        """Measure the offset of the clocks. If the wall clock was set since the last look, packets that came since get
        no date."""
        offset, now = self._offset_now()
        allowed = _STEP_NS * max(1.0, (now - self._looked) / 1e9)
        self._is_usable = abs(offset - self._offset) < allowed
        self._offset, self._looked = offset, now

    def date_us(self, ancillary: Iterable[tuple[int, int, bytes]]) -> int | None:
        """Arrival time on the monotonic clock, in microseconds. None: unknown."""
        for level, kind, stamp in ancillary if self._is_usable else ():
            if kind == TIMESTAMPNS and level == socket.SOL_SOCKET and len(stamp) == _TIMESPEC.size:
                seconds, nanoseconds = _TIMESPEC.unpack(stamp)
                return int(seconds * 1_000_000_000 + nanoseconds + self._offset) // 1000
        return None

    def _offset_now(self) -> tuple[int, int]:
        """Offset from the wall clock to the monotonic one, and the time of the look. Takes the first quick look, or the
        quickest of several: a process that loses its CPU between two clocks would date a packet too early, and every
        later one would seem late for minutes."""
        looks = []
        for _ in range(_LOOKS):
            before, wall, after = self._monotonic(), self._wall(), self._monotonic()
            looks.append((after - before, before - wall, after))
            if after - before < _QUICK_NS:
                break
        _, offset, now = min(looks)
        return offset, now
