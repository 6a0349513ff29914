"""What a cable itself loses: packets that left the port at one end and did not come to the port at the other.

A queue drops a packet before its port counts it as sent. So what is missing between two ports is the wire's, however
full the link is; and a full link of which nothing is missing has a good cable.

The two ports are read at different times, by clocks that differ. What is under way, or counted at one end only, is then
in proportion to the rate at which packets pass, and does not grow; a loss grows with the packets sent. Least squares
tell the two apart: missing(t) = constant + loss * sent(t) + delay * rate(t). What remains is the error.
"""

import bisect
import itertools
import math
from collections.abc import Callable, Sequence

import msgspec

from everstep.fabric.locate.observations import Counted

LEAST = 2e-3
"""A smaller loss is not named: ports differ in what they count (frames of the link itself)."""
_LEAST_LOST = 20
_FEWEST_POINTS = 12
_SIGMAS = 6.0
"""And more where few points say how large the error is: a fleet has thousands of links, looked at all the time."""
_MOST_DELAY_S = 2.0
_STEADY = 0.05
"""Standard deviation of a rate, of its mean. Below it a delay shows as error, and cannot be found from noise."""
_MORE_BYTES = 8.0
"""By so much longer packets may be at the receiver: a checksum or a tag is counted at one end only. Where they are
longer still, one end counts several as one (LRO), or the sender alone counts short ones of the link itself (pauses)."""
_BREAK_S = 0.5

_SENT = ("tx_packets", "port_xmit_packets")
_CAME = ("rx_packets", "port_rcv_packets")
_REFUSED = ("rx_missed_errors", "rx_over_errors", "rx_fifo_errors", "rx_out_of_buffer", "rx_discards_phy")
"""Packets that came over the wire, and for which the receiver had no room."""


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """Of one direction of a cable."""

    sent: int  # packets that were compared
    rate: float  # of them, that did not come
    error: float  # of that rate

    @property
    def most(self) -> float:
        """It loses no more."""
        return max(0.0, self.rate) + self.error

    @property
    def is_lossy(self) -> bool:
        return self.rate - self.error > 0 and self.rate >= LEAST and self.rate * self.sent >= _LEAST_LOST

    @property
    def lost(self) -> int:
        return max(0, round(self.rate * self.sent))


class _Series(msgspec.Struct, frozen=True):
    """A counter since its first reading: times and values, both growing."""

    at: list[float]
    value: list[float]

    def __call__(self, at: float) -> float:
        """Between two readings: as if it grew evenly."""
        place = min(max(1, bisect.bisect_left(self.at, at)), len(self.at) - 1)
        begin, end = self.at[place - 1], self.at[place]
        share = (at - begin) / (end - begin)
        return self.value[place - 1] + share * (self.value[place] - self.value[place - 1])


def wire_of(senders: Sequence[Counted], receivers: Sequence[Counted]) -> Wire | None:
    """From the windows of the two ports. None: not known."""
    out, into = _unbroken(senders, _SENT, "tx_bytes"), _unbroken(receivers, _CAME, "rx_bytes")
    if out is None or into is None:
        return None
    (sent, sent_bytes), (came, came_bytes) = (_series(each) for each in (out, into))
    times = [at for at in sent.at if came.at[0] <= at <= came.at[-1]]
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
    rate -= refused / max(1.0, sum(_count(each, _CAME) or 0 for each in into.windows) + refused)
    factor = _SIGMAS * (1 + 12 / (len(times) - 3))
    error = factor * math.hypot(deviation, math.sqrt(1.2 * max(rate, 1 / num_sent) / num_sent))
    return None if rate < -error and rate < -LEAST else Wire(sent=round(num_sent), rate=rate, error=error)


class _Chain(msgspec.Struct, frozen=True):
    windows: list[Counted]
    packets: tuple[str, ...]
    num_bytes: str


def _unbroken(windows: Sequence[Counted], packets: tuple[str, ...], num_bytes: str) -> _Chain | None:
    """The longest row of windows of which each begins where the one before it ended, and both counters are known."""
    listed = sorted((each for each in windows if each.at is not None), key=lambda each: each.at or 0.0)
    best, begin = range(0), 0
    for place, each in enumerate(listed):
        if place > begin and not _follows(listed[place - 1], each):
            begin = place
        if _count(each, packets) is None or num_bytes not in each.grown or each.seconds <= 0:
            begin = place + 1
        elif place + 1 - begin > len(best):
            best = range(begin, place + 1)
    return _Chain(listed[best.start : best.stop], packets, num_bytes) if best else None


def _follows(one: Counted, other: Counted) -> bool:
    """No line is missing, and no clock was set."""
    return abs((other.at or 0.0) - (one.at or 0.0) - other.seconds) < max(_BREAK_S, 0.1 * other.seconds)


def _count(window: Counted, names: tuple[str, ...]) -> int | None:
    value = next((window.grown[name] for name in names if name in window.grown), None)
    return None if value is None or value < 0 else value


def _series(chain: _Chain) -> tuple[_Series, _Series]:
    """Lengths of windows are exact; when a line was printed is less so, and says only when all of them were."""
    took = [0.0, *itertools.accumulate(each.seconds for each in chain.windows)]
    offsets = sorted((each.at or 0.0) - end for each, end in zip(chain.windows, took[1:], strict=True))
    at = [offsets[len(offsets) // 2] + each for each in took]
    values: list[Callable[[Counted], int]] = [
        lambda each: _count(each, chain.packets) or 0,
        lambda each: each.grown[chain.num_bytes],
    ]
    one, other = (_Series(at, [0.0, *itertools.accumulate(map(float, map(of, chain.windows)))]) for of in values)
    return one, other


def _grown(series: _Series, span: tuple[float, float]) -> float:
    return series(span[1]) - series(span[0])


def _are_alike(
    sent_bytes: _Series, came_bytes: _Series, num_sent: float, num_came: float, span: tuple[float, float]
) -> bool:
    """Whether both ends count the same packets."""
    if num_came <= 0:
        return True  # nothing comes at all
    return _grown(came_bytes, span) / num_came - _grown(sent_bytes, span) / num_sent <= _MORE_BYTES


def _refused(windows: Sequence[Counted]) -> int | None:
    """None: a counter that there is is not known."""
    if any(name in each.unknown for each in windows for name in _REFUSED):
        return None
    return sum(max(0, each.grown.get(name, 0)) for each in windows for name in _REFUSED)


def _fitted(times: Sequence[float], sent: _Series, came: _Series) -> tuple[float, float] | None:
    """Share that is lost, and its standard deviation. None: traffic changed in such a way that it cannot be told."""
    missing, grown = _centred([sent(at) - came(at) for at in times]), _centred([sent(at) for at in times])
    speed = _centred(_speeds(times, sent))
    a, b, c = _dot(grown, grown), _dot(speed, speed), _dot(grown, speed)
    u, v = _dot(grown, missing), _dot(speed, missing)
    if a <= 0:
        return None
    mean_speed = _dot([1.0] * len(times), _speeds(times, sent)) / len(times)
    if b < (_STEADY * mean_speed) ** 2 * len(times):  # a delay is a constant
        loss, delay, inverse = u / a, 0.0, 1 / a
    else:
        determinant = a * b - c * c
        if determinant < 1e-3 * a * b:
            return None
        loss, delay, inverse = (u * b - v * c) / determinant, (v * a - u * c) / determinant, b / determinant
    if abs(delay) > _MOST_DELAY_S:
        return None
    rest = [m - loss * g - delay * s for m, g, s in zip(missing, grown, speed, strict=True)]
    return loss, math.sqrt(_dot(rest, rest) / (len(times) - 3) * inverse)


def _speeds(times: Sequence[float], sent: _Series) -> list[float]:
    last = len(times) - 1
    ends = [(times[max(0, place - 1)], times[min(last, place + 1)]) for place in range(len(times))]
    return [(sent(end) - sent(begin)) / (end - begin) for begin, end in ends]


def _centred(values: Sequence[float]) -> list[float]:
    mean = sum(values) / len(values)
    return [value - mean for value in values]


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(map(float.__mul__, one, other))
