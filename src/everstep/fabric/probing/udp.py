"""Probes over UDP: a socket for each source port, because the source port decides the path, and one socket that
answers.

The kernel stamps the arrival of packets, so a process that reads late does not make the network look slow.
"""

import contextlib
import secrets
import socket
import struct
import sys
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from everstep.fabric.probing.dating import ANCILLARY_BYTES, TIMESTAMPNS, Dating
from everstep.fabric.probing.flow import Delays, Flow, Window
from everstep.fabric.probing.packets import SIZE, Echo, Probe, pack_echo, pack_probe, read_echo, read_probe

MOST_FLOWS = 20_000
"""Flows that a responder remembers. A stranger that sends many, from addresses of its choice, takes no place of those
that are heard."""
MOST_OF_HOST = 4096
"""... of one address, as many as one prober has. It then forgets that address's own that was silent longest."""
SILENT_S = 60.0
"""After that an address is forgotten for another one."""
_BATCH = 256
_SO_MEMINFO = 55  # of most Linux architectures; Python has no name for it
_MEMINFO = struct.Struct("=9I")  # the last one: packets dropped


class _Host:
    """The flows of one address: probes counted, and their delays."""

    __slots__ = ("flows", "heard_at")

    def __init__(self) -> None:
        self.flows: OrderedDict[tuple[int, int], tuple[int, Delays]] = OrderedDict()
        self.heard_at = time.monotonic()


class Responder:
    """Answers each probe with one packet of the same size. Foreign packets are ignored."""

    def __init__(self, address: str, port: int) -> None:
        """Raises OSError."""
        self._socket = _socket(address, port)
        self._dating = Dating()
        self._held: OrderedDict[str, _Host] = OrderedDict()  # by address
        self._num = 0

    def answer(self) -> int:
        """Answer all packets that have come; returns their number."""
        self._dating.look()
        packets = 0
        for data, peer, came_us in _packets(self._socket, self._dating):
            packets += 1
            probe = read_probe(data)
            if probe is None:
                continue
            count, delays = self._counted(peer[0], peer[1], probe, came_us)
            echo = Echo(probe.flow, probe.number, _now_us(), count, delays.late)
            try:
                self._socket.sendto(pack_echo(echo), peer)
            except OSError:
                continue
        return packets

    def dropped(self) -> int:
        """Packets that came while this process left no room for them."""
        return _dropped([self._socket])

    def _counted(self, host: str, port: int, probe: Probe, came_us: int | None) -> tuple[int, Delays]:
        of_host = self._held.get(host)
        key = (port, probe.flow)
        if of_host is None:
            if self._num >= MOST_FLOWS and not self._make_room():
                return 1, Delays()  # not remembered: others that are heard keep their counts
            of_host = self._held[host] = _Host()
        held = of_host.flows.get(key)
        if held is None:
            held = (0, Delays())
            self._num += 1
            if of_host.flows and (len(of_host.flows) >= MOST_OF_HOST or self._num > MOST_FLOWS):
                of_host.flows.popitem(last=False)
                self._num -= 1
        count, delays = held[0] + 1, held[1]
        delays.add(probe.sent_us, came_us)
        of_host.flows[key] = (count, delays)
        of_host.flows.move_to_end(key)
        of_host.heard_at = time.monotonic()
        self._held.move_to_end(host)
        return count, delays

    def _make_room(self) -> bool:
        """Forget the address that was silent longest, if it is silent at all."""
        host, oldest = next(iter(self._held.items()))
        if time.monotonic() - oldest.heard_at < SILENT_S:
            return False
        self._num -= len(oldest.flows)
        del self._held[host]
        return True

    def close(self) -> None:
        self._socket.close()


class Prober:
    """Sends the probes of one host. `flows`: (address of the peer, source port). Flows of one source port share a
    socket.

    The sockets are never connected: Linux gives the packets of a connected socket a hash of their own, and a Linux
    router uses that hash as the packet's, so the path could not be computed.
    """

    def __init__(self, address: str, flows: Sequence[tuple[str, int]], port: int) -> None:
        """Raises OSError."""
        self._flows = [Flow(secrets.randbits(32)) for _ in flows]
        self._by_key = {(peer, flow.key): flow for (peer, _), flow in zip(flows, self._flows, strict=True)}
        self._sockets: dict[int, socket.socket] = {}
        self._dating = Dating()
        self._ways: list[tuple[socket.socket, tuple[str, int]]] = []
        for peer, source in flows:
            if source not in self._sockets:
                self._sockets[source] = _socket(address, source)
            self._ways.append((self._sockets[source], (peer, port)))

    def send(self, place: int) -> None:
        """Send one probe of this flow. A probe that cannot be sent counts too: the path is broken at its beginning."""
        flow = self._flows[place]
        now = _now_us()
        number = flow.add_sent(now)
        each, peer = self._ways[place]
        try:
            each.sendto(pack_probe(Probe(flow.key, number, now)), peer)
        except OSError:
            return

    def receive(self) -> int:
        """Read all packets that have come; returns their number."""
        self._dating.look()
        packets = 0
        for each in self._sockets.values():
            for data, peer, came_us in _packets(each, self._dating):
                packets += 1
                echo = read_echo(data)
                flow = None if echo is None else self._by_key.get((peer[0], echo.flow))
                if echo is not None and flow is not None:
                    flow.add_echo(echo.number, echo.received, echo.late, echo.answered_us, came_us)
        return packets

    def dropped(self) -> int:
        """Packets that came while this process left no room for them."""
        return _dropped(self._sockets.values())

    def close_window(self) -> list[Window]:
        """Close the window of each flow. Reads the waiting packets first: this process may have been late."""
        self.receive()
        return [flow.close(_now_us()) for flow in self._flows]

    def close(self) -> None:
        for each in self._sockets.values():
            each.close()


def _packets(each: socket.socket, dating: Dating) -> Iterator[tuple[bytes, Any, int | None]]:
    """The packets that have come: data, sender, and arrival time in microseconds (None: unknown)."""
    for _ in range(_BATCH):
        try:
            data, ancillary, _flags, peer = each.recvmsg(SIZE + 1, ANCILLARY_BYTES)  # longer ones are foreign
        except OSError:  # nothing more, or an ICMP error of an earlier packet
            return
        yield data, peer, dating.date_us(ancillary)


def _dropped(sockets: Iterable[socket.socket]) -> int:
    """Dropped packets, as the kernel counts them per socket; 0 if it does not."""
    total = 0
    for each in sockets if sys.platform == "linux" else ():
        with contextlib.suppress(OSError, struct.error):
            total += _MEMINFO.unpack(each.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size))[-1]
    return total


def _socket(address: str, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        made.setblocking(False)
        if sys.platform == "linux":
            made.setsockopt(socket.SOL_SOCKET, TIMESTAMPNS, 1)
        made.bind((address, port))
    except OSError:
        made.close()
        raise
    return made


def _now_us() -> int:
    return time.monotonic_ns() // 1000
