"""One host's part: answers probes of others, sends its own, and closes a window every so often.

It wakes up `TICK_S` apart and does then all there is to do: a process that woke for each packet would cost the host
several times as much. Times of packets are the kernel's, so nothing comes late by it. Where more packets come than a
socket holds for so long, it wakes up more often.
"""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from everstep.fabric.locate.observations import Seen
from everstep.fabric.probing.flow import Window
from everstep.fabric.probing.udp import Prober, Responder

TICK_S = 0.34
"""Most of what probing costs is waking up with cold caches: three times in a window of a second. Waits and lateness of
two hosts together stay below the time after which a probe counts as lost."""
MOST_LATE_S = 0.25
"""A process that did not run for longer may have lost packets in its own sockets: such a window is no evidence."""
_MOST_SENT = 64
"""Packets that are sent when it wakes up."""
_MOST_WAITING = 128
"""Packets that wait for it when it wakes up: a socket of Linux holds some 270 of them by default."""
_LEAST_TICK_S = 0.005


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A flow of this host, and the nodes on its two ways."""

    to: str  # numeric address
    port: int  # source port
    there: tuple[str, ...]
    back: tuple[str, ...]


class Watched(NamedTuple):
    """A window."""

    seen: list[Seen]
    late_s: float  # this process was so late in it, at most
    dropped: int  # packets came, and it had left no room for them


def watch(address: str, port: int, flows: Sequence[Planned], *, rate: float, every_s: float) -> Iterator[Watched]:
    """For ever. `rate`: probes of each flow in a second. Raises OSError."""
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
                late_s = 0.0  # of the next window, with the time that printing takes
            if now - due > every_s:  # this process was stopped: what was not sent is not sent now
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
    """What a window of one flow says of its two ways, and of both together."""
    around = (*there, *back[1:])
    rows = (
        (there, window.there, window.late_there[1]),
        (back, window.back, window.late_back[1]),
        (around, window.unknown, 0),
    )
    for nodes, (sent, bad), late in rows:
        if sent:
            yield Seen(nodes=nodes, sent=sent, bad=bad, late=late)
