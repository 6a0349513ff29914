"""One host's part: answers probes of others, sends its own, and closes a window every so often.

It wakes up `TICK_S` apart and does then all there is to do: a process that woke for each packet would cost the host
several times as much. Times of packets are the kernel's, so nothing comes late by it.
"""

import time
from collections.abc import Iterator, Sequence

import msgspec

from everstep.fabric.locate.observations import Seen
from everstep.fabric.probing.flow import Window
from everstep.fabric.probing.udp import Prober, Responder

TICK_S = 0.2
"""Most of what probing costs is waking up with cold caches. Waits and lateness of two hosts together stay below the
time after which a probe counts as lost."""
MOST_LATE_S = 0.25
"""A process that did not run for longer may have lost packets in its own sockets: such a window is no evidence."""


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A flow of this host, and the nodes on its two ways."""

    to: str  # numeric address
    port: int  # source port
    there: tuple[str, ...]
    back: tuple[str, ...]


def watch(
    address: str, port: int, flows: Sequence[Planned], *, rate: float, every_s: float
) -> Iterator[tuple[list[Seen], float]]:
    """Losses of each window, and how late this process was in it at most; for ever. `rate`: probes of each flow in a
    second. Raises OSError."""
    responder = Responder(address, port)
    prober = None
    try:
        prober = Prober(address, [(flow.to, flow.port) for flow in flows], port)
        gap = 1 / (rate * len(flows)) if flows else every_s
        due, close_at, turn, late_s = time.monotonic(), time.monotonic() + every_s, 0, 0.0
        looked = due
        while True:
            now = time.monotonic()
            late_s, looked = max(late_s, now - looked - TICK_S), now
            responder.answer()
            if now >= close_at:
                close_at = now + every_s
                windows, at = zip(flows, prober.close_window(), strict=True), round(time.time(), 3)
                rows = [seen for flow, window in windows for seen in seen_of(flow.there, flow.back, window)]
                yield [msgspec.structs.replace(seen, at=at, seconds=every_s) for seen in rows], late_s
                late_s = 0.0  # of the next window, with the time that printing takes
            if now - due > every_s:  # this process was stopped: what was not sent is not sent now
                due = now
            while flows and due <= now:
                prober.send(turn % len(flows))
                turn, due = turn + 1, due + gap
            prober.receive()
            time.sleep(max(0.0, min(close_at - now, TICK_S)))
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
