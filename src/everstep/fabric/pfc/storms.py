"""Pause storms, by the rules of SONiC's watchdog: a queue holds packets, sends none and is paused all the time.

A storm needs two intervals that agree, over at least `DETECTION_S`. A gap, a clock that goes back, and a counter that
was cleared, is missing or exceeds what a port can count are no evidence: counting starts again, and a storm that was
found stays. These intervals are counted: if no storm is found in them, that does not mean health.
"""

from collections.abc import Iterable, Mapping

import msgspec

from everstep.fabric.pfc.counters import Sample, increase

DETECTION_S = 0.2
RESTORATION_S = 0.2
_AGREEING = 2
_MOST_GAP = 10.0
"""Multiple of the usual time between samples. Nothing is concluded about a longer gap."""
_PAUSED = 0.99
_MOST_PER_S = 4e9
"""Packets or pauses per second; 1.6 Tbit/s of the smallest frames are 2.4e9."""
_MOST_PAUSED = 4.0
"""Multiple of the interval: counters are read a little before or after their time."""
_JITTER = 0.95
"""Tolerance for samples that come a little early or late; without it, detection would take one more interval."""


class Storm(msgspec.Struct, frozen=True, kw_only=True):
    switch: str
    port: str
    priority: int
    began: float  # end of the last interval without it
    found: float
    over: float | None = None


class _Port(msgspec.Struct, kw_only=True):
    last: Sample
    usual_s: float | None = None
    is_judged: bool = False  # at least once
    num: int = 0  # intervals that agreed
    since: float = 0.0
    quiet_since: float | None = None
    storm: Storm | None = None


class StormWatch:
    """Finds storms in a stream of samples."""

    def __init__(self) -> None:
        self._ports: dict[tuple[str, str, int], _Port] = {}
        self.storms: list[Storm] = []  # also those that are over
        self.num_judged = 0  # intervals between two samples of a port
        self.num_unknown = 0

    @property
    def never_judged(self) -> list[tuple[str, str, int]]:
        """Switch, port and priority without a single judged interval."""
        return [key for key, port in self._ports.items() if not port.is_judged]

    def add(self, sample: Sample) -> Storm | None:
        """Add a sample. Returns the storm that it reveals, or None."""
        port = self._ports.get(sample.key)
        if port is None:
            self._ports[sample.key] = _Port(last=sample)
            return None
        before, port.last = port.last, sample
        elapsed = sample.at - before.at
        if elapsed <= 0 or (port.usual_s is not None and elapsed > _MOST_GAP * port.usual_s):
            port.num, port.quiet_since = 0, None
            self.num_unknown += 1
            return None
        port.usual_s = elapsed if port.usual_s is None else min(port.usual_s * 1.5, elapsed)
        is_paused = _is_paused(before, sample, elapsed)
        port.is_judged |= is_paused is not None
        self.num_judged += is_paused is not None
        self.num_unknown += is_paused is None
        if port.storm is not None:
            self._restore(port, before, sample, elapsed)
            return None
        if not is_paused:
            port.num = 0
            return None
        port.since = port.since if port.num else before.at
        port.num += 1
        if port.num < _AGREEING or sample.at - port.since < DETECTION_S * _JITTER:
            return None
        port.storm = Storm(
            switch=sample.switch, port=sample.port, priority=sample.priority, began=port.since, found=sample.at
        )
        self.storms.append(port.storm)
        return port.storm

    def _restore(self, port: _Port, before: Sample, sample: Sample, elapsed: float) -> None:
        pauses = _possible(increase(before.rx_pause, sample.rx_pause), _MOST_PER_S * elapsed)
        if pauses is None or pauses > 0 or port.storm is None:
            port.quiet_since = None
            return
        port.quiet_since = before.at if port.quiet_since is None else port.quiet_since
        if sample.at - port.quiet_since >= RESTORATION_S * _JITTER:
            over = msgspec.structs.replace(port.storm, over=sample.at)
            self.storms[self.storms.index(port.storm)] = over
            port.storm, port.num, port.quiet_since = None, 0, None


def find_storms(samples: Iterable[Sample]) -> list[Storm]:
    return watch_storms(samples).storms


def watch_storms(samples: Iterable[Sample]) -> StormWatch:
    watch = StormWatch()
    for sample in samples:
        watch.add(sample)
    return watch


def _is_paused(before: Sample, now: Sample, elapsed: float) -> bool | None:
    """Whether packets wait, none is sent, and pauses arrive. None: the counters do not show it."""
    sent = _possible(increase(before.tx_packets, now.tx_packets), _MOST_PER_S * elapsed)
    if sent is None or sent > 0:
        return None if sent is None else False
    if now.queue_bytes is None or now.queue_bytes == 0:
        return None if now.queue_bytes is None else False
    pauses = _possible(increase(before.rx_pause, now.rx_pause), _MOST_PER_S * elapsed)
    paused_us = _possible(increase(before.pause_us, now.pause_us), _MOST_PAUSED * elapsed * 1e6)
    if pauses is None and paused_us is None:
        return None
    return (pauses or 0) > 0 or (paused_us or 0) > _PAUSED * elapsed * 1e6


def _possible(counted: int | None, most: float) -> int | None:
    return None if counted is None or counted > most else counted


def roots(storms: Iterable[Storm], peers: Mapping[tuple[str, str], str], hosts: frozenset[str]) -> dict[str, str]:
    """Sources of the pauses: node -> reason. `peers`: (switch, port) -> the node behind that port.

    The node behind a paused port is a source, unless it is a switch with a paused port itself.
    """
    live = [storm for storm in storms if storm.over is None]
    paused = {storm.switch for storm in live}
    found: dict[str, str] = {}
    for storm in live:
        peer = peers.get((storm.switch, storm.port))
        if peer is None:
            continue
        if peer in hosts:
            found[peer] = f"its NIC pauses {storm.switch}:{storm.port} without end: a slow receiver, or a broken NIC"
        elif peer not in paused:
            found[peer] = f"it pauses {storm.switch}:{storm.port}, and none of its own ports is paused"
    return found
