"""The wall clock: whether it was set between two looks, and whether a time service controls it (adjtimex)."""

import ctypes
import time
from collections.abc import Callable

from everstep.model.facts import Alert
from everstep.probes.sense import UnsupportedError, alert

EVERY_S = 5.0
JUMP_S = 0.5
"""Slewing moves a clock by half a thousandth of the time: milliseconds between two looks."""
_TIME_ERROR = 5
_STA_UNSYNC = 0x0040


class ClockJumps:
    """The sense for a clock that is set, also after a pause of the machine."""

    name = "clock"
    every_s = EVERY_S

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._offset_s = wall() - monotonic()

    def look(self, now: float) -> list[Alert]:
        offset_s = self._wall() - self._monotonic()
        jump_s, self._offset_s = offset_s - self._offset_s, offset_s
        if abs(jump_s) < JUMP_S:
            return []
        where = "forward" if jump_s > 0 else "back"
        what = f"the clock of the node was set {abs(jump_s):.1f} s {where}"
        return [alert("ES-M33", what, at=now, source=self.name, device="clock")]

    def close(self) -> None:
        return


class TimeService:
    """The sense for the kernel's flag that a time service controls the clock."""

    name = "time service"
    every_s = 60.0

    def __init__(self, is_held: Callable[[], bool] | None = None) -> None:
        self._is_held = is_held or clock_is_held
        self._was_held = False

    def look(self, now: float) -> list[Alert]:
        if self._is_held():
            self._was_held = True
            return []
        if not self._was_held:
            raise UnsupportedError("no time service has reported to the kernel that it holds the clock")
        what = "no time service holds the clock of the node any more"
        return [alert("ES-M34", what, at=now, source=self.name, device="clock")]

    def close(self) -> None:
        return


class _Timex(ctypes.Structure):
    """struct timex of Linux; only the status is read."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def clock_is_held() -> bool:
    """Whether a time service controls the clock. Raises UnsupportedError."""
    timex = _Timex()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    if state < 0:
        raise UnsupportedError(f"adjtimex: errno {ctypes.get_errno()}")
    return state != _TIME_ERROR and not timex.status & _STA_UNSYNC
