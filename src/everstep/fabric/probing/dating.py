"""When a packet came: the kernel's stamp, which is of the wall clock, on the monotonic clock of this host."""

import socket
import struct
import time
from collections.abc import Callable, Iterable

TIMESTAMPNS = 35
"""SO_TIMESTAMPNS of most Linux architectures; Python has no name for it."""

_TIMESPEC = struct.Struct("@qq")
ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)
_LOOKS = 5
_STEP_NS = 2_000_000
"""Clocks that are disciplined drift by less between two looks a second apart; more is a step of the wall clock."""

Clock = Callable[[], int]


class Dating:
    """Of one socket. `look` before packets are read, then `date_us` for each."""

    def __init__(self, monotonic: Clock = time.monotonic_ns, wall: Clock = time.time_ns) -> None:
        self._monotonic, self._wall = monotonic, wall
        self._offset, self._looked = self._offset_now()
        self._is_usable = True

    def look(self) -> None:
        """What came since the look before is not dated where the wall clock was set meanwhile."""
        offset, now = self._offset_now()
        allowed = _STEP_NS * max(1.0, (now - self._looked) / 1e9)
        self._is_usable = abs(offset - self._offset) < allowed
        self._offset, self._looked = offset, now

    def date_us(self, ancillary: Iterable[tuple[int, int, bytes]]) -> int | None:
        """None: not known."""
        stamps = [data for level, kind, data in ancillary if (level, kind) == (socket.SOL_SOCKET, TIMESTAMPNS)]
        if not self._is_usable or not stamps or len(stamps[0]) != _TIMESPEC.size:
            return None
        seconds, nanoseconds = _TIMESPEC.unpack(stamps[0])
        return int(seconds * 1_000_000_000 + nanoseconds + self._offset) // 1000

    def _offset_now(self) -> tuple[int, int]:
        """From the wall clock to the monotonic one. Of several looks the quickest: a process that loses the processor
        between two clocks would date a packet too early, and every later packet would seem late for minutes."""
        looks = []
        for _ in range(_LOOKS):
            before, wall, after = self._monotonic(), self._wall(), self._monotonic()
            looks.append((after - before, before - wall, after))
        _, offset, now = min(looks)
        return offset, now
