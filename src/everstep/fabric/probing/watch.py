"""Probing on one host: answers the probes of others, sends its own, and closes a window at regular times.

The process wakes up every `TICK_S` and does all waiting work: waking for each packet would cost the host several times
as much. The kernel dates packets, so this makes none late. If more packets come than a socket holds for that time, the
process wakes up more often.
"""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from everstep.fabric.locate.observations import Seen
from everstep.fabric.probing.flow import Window
from everstep.fabric.probing.udp import Prober, Responder

TICK_S = 0.34
"""Seconds between wake-ups: three in a window of a second. Waking up with cold caches is most of the cost of probing.
The waits and delays of two hosts together stay below the time after which a probe counts as lost."""
MOST_LATE_S = 0.25
"""If this process did not run for longer, its own sockets may have lost packets: the window is no evidence."""
_MOST_SENT = 64
"""Packets to send at one wake-up."""
_MOST_WAITING = 128
"""Packets that may wait at one wake-up; a Linux socket holds some 270 of them by default."""
_LEAST_TICK_S = 0.005


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A flow of this host, and the nodes on its ways there and back."""

    to: str  # numeric address
    port: int  # source port
    there: tuple[str, ...]
    back: tuple[str, ...]


class Watched(NamedTuple):
    """One window."""

    seen: list[Seen]
    late_s: float  # largest delay of this process in it
    dropped: int  # packets that came while this process left no room for them


def watch(address: str, port: int, flows: Sequence[Planned], *, rate: float, every_s: float) -> Iterator[Watched]:
    """Probe for ever; yields one window per `every_s` seconds. `rate`: probes per second of each flow. Raises
    OSError."""
    responder = Responder(address, port)
    prober = None
    try:
        prober = Prober(address, [(flow.to, flow.port) for flow in flows], port)
        gap = 1 / (rate * len(flows)) if flows else every_s
        usual_s = max(_LEAST_TICK_S, min(TICK_S, gap * _MOST_SENT))
        due, close_at, turn, late_s = time.monotonic(), time.monotonic() + every_s, 0, 0.0
        wake_at = looked = due
        dropped = 0
        while True:
            now = time.monotonic()
            late_s = max(late_s, now - wake_at)
            waited_s, looked = now - looked, now
            packets = responder.answer()
            if now >= close_at:
                close_at = now + every_s
                windows, at = zip(flows, prober.close_window(), strict=True), round(time.time(), 3)
                rows = [seen for flow, window in windows for seen in seen_of(flow.there, flow.back, window)]
                before, dropped = dropped, responder.dropped() + prober.dropped()
                told = [msgspec.structs.replace(seen, at=at, seconds=every_s) for seen in rows]
                yield Watched(told, late_s, max(0, dropped - before))
                late_s = 0.0  # the delay in the next window includes the time that printing takes
            if now - due > every_s:  # this process was stopped: do not send the missed probes now
                due = now
            while flows and due <= now:
                prober.send(turn % len(flows))
                turn, due = turn + 1, due + gap
            packets += prober.receive()
            tick_s = max(_LEAST_TICK_S, min(usual_s, waited_s * _MOST_WAITING / max(1, packets)))
            wake_at = now + min(tick_s, max(0.0, close_at - now))
            time.sleep(max(0.0, wake_at - time.monotonic()))
    finally:
        responder.close()
        if prober is not None:
            prober.close()


def seen_of(there: tuple[str, ...], back: tuple[str, ...], window: Window) -> Iterator[Seen]:
    """Observations in a window of one flow: on the way there, on the way back, and on both together."""
    around = (*there, *back[1:])
    rows = (
        (there, window.there, window.late_there[1]),
        (back, window.back, window.late_back[1]),
        (around, window.unknown, 0),
    )
    for nodes, (sent, bad), late in rows:
        if sent:
            yield Seen(nodes=nodes, sent=sent, bad=bad, late=late)
