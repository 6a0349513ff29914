"""Loss of a cable itself: packets that left the port at one end and did not arrive at the port at the other.

A queue drops a packet before its port counts it as sent. So the wire lost what is missing between two ports, however
full the link is. A full link with no packets missing has a good cable.

The two ports are read at different times, by clocks that differ. Packets under way, or counted at one end only, are
then in proportion to the packet rate and do not grow; a loss grows with the packets sent. Least squares separate the
two: missing(t) = constant + loss * sent(t) + delay * rate(t). The residual is the error. If the other port was read at
nearly the same time, little is interpolated, and the reading weighs more.
"""

import bisect
import itertools
import math
from collections.abc import Sequence

import msgspec

from everstep.fabric.locate.observations import CAME, SENT, Counted, Mark

LEAST = 2e-3
"""A smaller loss is not named: ports differ in what they count (frames of the link itself)."""
_LEAST_LOST = 20
_FEWEST_POINTS = 12
_SIGMAS = 6.0
"""Standard deviations of error, and more with few points: a fleet has thousands of links, checked all the time."""
_MOST_DELAY_S = 2.0
_STEADY = 0.05
"""Standard deviation of a packet rate, as a share of its mean. Below it a delay looks like noise, and counts as
error."""
_MORE_BYTES = 8.0
"""Bytes by which packets may be longer at the receiver: a checksum or a tag is counted at one end only. If they are
longer still, one end counts several packets as one (LRO), or only the sender counts short frames of the link itself
(pauses)."""
_BREAK_S = 0.5
_ROUNDED_S = 2e-3  # times in lines are rounded to this
_EXACT_S = 2e-3
"""Best accuracy of a reading that names its time, in seconds."""

_REFUSED = ("rx_missed_errors", "rx_over_errors", "rx_fifo_errors", "rx_out_of_buffer", "rx_discards_phy")
"""Counters of packets that arrived over the wire and found no room in the receiver."""


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """Loss of one direction of a cable."""

    sent: int  # packets that were compared
    rate: float  # share of them that did not arrive
    error: float  # of `rate`, from when and how the ports were read

    @property
    def least(self) -> float:
        return self.rate - math.hypot(self.error, self._chance)

    @property
    def most(self) -> float:
        """Upper bound of the loss rate."""
        return max(0.0, self.rate) + math.hypot(self.error, self._chance)

    @property
    def _chance(self) -> float:
        """Random spread: another time it would lose more or fewer of as many packets."""
        return _SIGMAS * math.sqrt(1.2 * max(self.rate, 1 / self.sent) / self.sent)

    @property
    def is_lossy(self) -> bool:
        """Whether it loses packets. Random spread is no error here: what did not arrive was lost."""
        return self.rate - self.error > 0 and self.rate >= LEAST and self.rate * self.sent >= _LEAST_LOST

    @property
    def lost(self) -> int:
        return max(0, round(self.rate * self.sent))


class _Series(msgspec.Struct, frozen=True):
    """A counter since its first reading: times and values, both growing."""

    at: list[float]
    value: list[float]

    def add(self, at: float, value: float) -> None:
        self.at.append(at)
        self.value.append(value)

    def __call__(self, at: float) -> float:
        """The value at a time, interpolated linearly between two readings."""
        place = self._end(at)
        begin, end = self.at[place - 1], self.at[place]
        share = (at - begin) / (end - begin)
        return self.value[place - 1] + share * (self.value[place] - self.value[place - 1])

    def guessed_s(self, at: float) -> float:
        """Proportional to the variance of the interpolation: 0 at a reading, largest in the middle of two."""
        place = self._end(at)
        begin, end = self.at[place - 1], self.at[place]
        return max(0.0, (at - begin) * (end - at) / (end - begin))

    def _end(self, at: float) -> int:
        return min(max(1, bisect.bisect_left(self.at, at)), len(self.at) - 1)


def wire_of(senders: Sequence[Counted], receivers: Sequence[Counted]) -> Wire | None:
    """Loss of a cable, from the windows of its two ports. None: unknown."""
    out, into = _unbroken(senders, SENT, "tx_bytes"), _unbroken(receivers, CAME, "rx_bytes")
    if out is None or into is None:
        return None
    (sent, sent_bytes), (came, came_bytes) = (_series(each) for each in (out, into))
    if not all(_grow(each.at) for each in (sent, sent_bytes, came, came_bytes)):
        return None  # windows too short for the clock to separate their ends, or readings after their window
    times = [at for at in sent.at if came.at and came.at[0] <= at <= came.at[-1]]
    if len(times) < _FEWEST_POINTS:
        return None
    span = times[0], times[-1]
    num_sent = _grown(sent, span)
    if num_sent < _LEAST_LOST or not _are_alike(sent_bytes, came_bytes, num_sent, _grown(came, span), span):
        return None
    fitted = _fitted(times, sent, came)
    if fitted is None:
        return None
    rate, deviation = fitted
    refused = _refused(into.windows)
    if refused is None:
        return None
    rate -= refused / max(1.0, sum(_count(each, CAME) or 0 for each in into.windows) + refused)
    error = _SIGMAS * (1 + 12 / (len(times) - 3)) * deviation
    if rate < -error and rate < -LEAST:
        return None
    return Wire(sent=round(num_sent), rate=min(1.0, rate), error=error)


class _Chain(msgspec.Struct, frozen=True):
    windows: list[Counted]
    packets: tuple[str, ...]
    num_bytes: str


def _unbroken(windows: Sequence[Counted], packets: tuple[str, ...], num_bytes: str) -> _Chain | None:
    """The longest chain of windows in which each begins at the end of the one before, and both counters are known."""
    listed = sorted((each for each in windows if each.at is not None), key=lambda each: each.at or 0.0)
    best, begin = range(0), 0
    for place, each in enumerate(listed):
        if place > begin and not _follows(listed[place - 1], each):
            begin = place
        if _count(each, packets) is None or num_bytes not in each.grown or not _are_possible(each, packets):
            begin = place + 1
        elif place + 1 - begin > len(best):
            best = range(begin, place + 1)
    return _Chain(listed[best.start : best.stop], packets, num_bytes) if best else None


def _follows(one: Counted, other: Counted) -> bool:
    """Whether `other` directly follows `one`: no line is missing, and no clock was set."""
    return abs((other.at or 0.0) - (one.at or 0.0) - other.seconds) < max(_BREAK_S, 0.1 * other.seconds)


def _are_possible(window: Counted, packets: tuple[str, ...]) -> bool:
    """Whether the times of its readings grow, and their values rise from 0 to the total."""
    marks = window.marks or ()
    times = [0.0, *(mark.seconds for mark in marks)]
    values = [0, *(_passed(mark, packets) for mark in marks), _count(window, packets) or 0]
    is_inside = times[-1] <= window.seconds + _ROUNDED_S
    return window.seconds > 0 and is_inside and _grow(times) and values == sorted(values)


def _grow(times: Sequence[float]) -> bool:
    return all(one < other for one, other in itertools.pairwise(times))


def _passed(mark: Mark, packets: tuple[str, ...]) -> int:
    return mark.sent if packets is SENT else mark.came


def _count(window: Counted, names: tuple[str, ...]) -> int | None:
    value = next((window.grown[name] for name in names if name in window.grown), None)
    return None if value is None or value < 0 else value


def _series(chain: _Chain) -> tuple[_Series, _Series]:
    """Packets at all readings with an exact time; bytes at the ends of windows. Lengths of windows are exact; the print
    time of a line is less so, and serves only for the common offset."""
    took = [0.0, *itertools.accumulate(each.seconds for each in chain.windows)]
    offsets = sorted((each.at or 0.0) - end for each, end in zip(chain.windows, took[1:], strict=True))
    began = [offsets[len(offsets) // 2] + each for each in took]
    packets, num_bytes = _Series([], []), _Series(began, [0.0])
    passed = 0
    for window, begin in zip(chain.windows, began, strict=False):
        if window.marks is None and not packets.at:
            packets.add(begin, 0.0)
        for seconds, value in _readings(window, chain.packets):
            packets.add(begin + seconds, passed + value)
        passed += _count(window, chain.packets) or 0
        num_bytes.value.append(num_bytes.value[-1] + window.grown[chain.num_bytes])
    return packets, num_bytes


def _readings(window: Counted, packets: tuple[str, ...]) -> list[tuple[float, int]]:
    """Pairs: seconds since the window's beginning, packets until then."""
    if window.marks is None:
        return [(window.seconds, _count(window, packets) or 0)]
    return [(mark.seconds, _passed(mark, packets)) for mark in window.marks]


def _grown(series: _Series, span: tuple[float, float]) -> float:
    return series(span[1]) - series(span[0])


def _are_alike(
    sent_bytes: _Series, came_bytes: _Series, num_sent: float, num_came: float, span: tuple[float, float]
) -> bool:
    """Whether both ends count the same packets."""
    if num_came <= 0:
        return True  # no packet arrives at all
    return _grown(came_bytes, span) / num_came - _grown(sent_bytes, span) / num_sent <= _MORE_BYTES


def _refused(windows: Sequence[Counted]) -> int | None:
    """Packets that the receiver refused. None: a counter exists, and its value is unknown."""
    if any(name in each.unknown for each in windows for name in _REFUSED):
        return None
    return sum(max(0, each.grown.get(name, 0)) for each in windows for name in _REFUSED)


def _fitted(times: Sequence[float], sent: _Series, came: _Series) -> tuple[float, float] | None:
    """Share of packets lost, and its standard deviation. None: the traffic does not allow the fit."""
    weights = [1 / (came.guessed_s(at) + _EXACT_S) for at in times]
    speeds = _speeds(times, sent)
    missing = _centred([sent(at) - came(at) for at in times], weights)
    grown, speed = _centred([sent(at) for at in times], weights), _centred(speeds, weights)
    a, b, c = _dot(weights, grown, grown), _dot(weights, speed, speed), _dot(weights, grown, speed)
    u, v = _dot(weights, grown, missing), _dot(weights, speed, missing)
    if a <= 0:
        return None
    mean_speed = sum(speeds) / len(times)
    if b < (_STEADY * mean_speed) ** 2 * sum(weights):  # a delay is a constant
        loss, delay, inverse = u / a, 0.0, 1 / a
    else:
        determinant = a * b - c * c
        if determinant < 1e-3 * a * b:
            return None
        loss, delay, inverse = (u * b - v * c) / determinant, (v * a - u * c) / determinant, b / determinant
    if abs(delay) > _MOST_DELAY_S:
        return None
    rest = [m - loss * g - delay * s for m, g, s in zip(missing, grown, speed, strict=True)]
    return loss, math.sqrt(_dot(weights, rest, rest) / (len(times) - 3) * inverse)


def _speeds(times: Sequence[float], sent: _Series) -> list[float]:
    last = len(times) - 1
    ends = [(times[max(0, place - 1)], times[min(last, place + 1)]) for place in range(len(times))]
    return [(sent(end) - sent(begin)) / (end - begin) for begin, end in ends]


def _centred(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    mean = _dot(values, weights) / sum(weights)
    return [value - mean for value in values]


def _dot(*rows: Sequence[float]) -> float:
    return sum(map(math.prod, zip(*rows, strict=True)))
