"""Losses of one flow on its two ways, from its own counters and those in the echoes.

An echo holds the number of probes that had arrived when it was sent, so losses there and losses back are separated
without a clock. Only losses after the last echo have an unknown direction.
"""

from collections import deque

import msgspec

LATE_US = 10_000
"""Delay above the shortest one seen on this way: a queue, or a slow link."""

_DRIFT = 100e-6
"""Drift of two undisciplined clocks per second; the shortest delay ages at the same rate. Even so, a permanent queue
counts as late for minutes."""

_JUMP_US = 1_000_000
TIMEOUT_US = 1_250_000


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Pairs of packets sent, and packets lost or late: on the way there, on the way back, and of unknown direction."""

    there: tuple[int, int]
    back: tuple[int, int]
    unknown: tuple[int, int]
    late_there: tuple[int, int]
    late_back: tuple[int, int]


class Delays:
    """Counts the packets that arrive late on one way."""

    def __init__(self) -> None:
        self._shortest: float | None = None
        self._came_us = 0
        self.late = 0

    def add(self, sent_us: int, came_us: int | None) -> None:
        """`came_us`: arrival time; None: unknown, nothing is concluded."""
        if came_us is None:
            return
        took = came_us - sent_us
        if self._shortest is None or took < self._shortest - _JUMP_US or took > self._shortest + 60 * _JUMP_US:
            self._shortest = took  # the first, or a clock that jumped
        elif took < self._shortest:
            self._shortest = took
        else:
            self.late += took > self._shortest + LATE_US
            self._shortest += _DRIFT * max(0, came_us - self._came_us)
        self._came_us = came_us


class Flow:
    """Counters of the sending side."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.sent = 0
        self._echoes = self._last = self._received = self._late_there = 0
        self._delays = Delays()
        self._base = (0, 0, 0, 0, 0)  # last probe answered, received there, echoes, late there, late back
        self._recent: deque[int] = deque(maxlen=10_000)  # times of probes that may still be answered

    def add_sent(self, now_us: int) -> int:
        """Count a probe that is sent now; returns its number."""
        self.sent += 1
        self._recent.append(now_us)
        return self.sent

    def add_echo(self, number: int, received: int, late: int, answered_us: int, came_us: int | None) -> None:
        """Count an echo. Impossible echoes are ignored: of a probe that was not sent, or of more probes than sent."""
        if not 0 < number <= self.sent or received > self.sent or late > received:
            return
        self._echoes += 1
        self._delays.add(answered_us, came_us)
        if number > self._last:
            self._last, self._received, self._late_there = number, received, late

    def close(self, now_us: int) -> Window:
        """Close the window and begin the next. Probes after the last echo are lost, in an unknown direction, once they
        are older than `TIMEOUT_US`; younger ones belong to the next window."""
        last, received, echoes, late_there, late_back = self._base
        sent = max(0, self._last - last)
        came = min(sent, max(0, self._received - received))
        answers = min(came, self._echoes - echoes)
        ended = max(self._last, last)
        lost = max(0, self._settled(now_us) - ended)
        self._base = (ended + lost, max(received, self._received), self._echoes, self._late_there, self._delays.late)
        return Window(
            there=(sent, sent - came),
            back=(came, came - answers),
            unknown=(lost, lost),
            late_there=(came, min(came, max(0, self._late_there - late_there))),
            late_back=(answers, min(answers, max(0, self._delays.late - late_back))),
        )

    def _settled(self, now_us: int) -> int:
        """Number of probes that are too old to be answered now."""
        while self._recent and self._recent[0] < now_us - TIMEOUT_US:
            self._recent.popleft()
        return self.sent - len(self._recent)
