"""This node's links to other hosts of the run: answers their probes, sends its own, and reports when a link has
changed.

Only on several hosts: without neighbours no socket is opened. A fault in here costs what is known of links, never the
ranks. The probes are small and few: `PER_PEER_S` apart for each of at most eight neighbours.
"""

import asyncio
import contextlib
import ipaddress
import logging
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from everstep.agent.senses.ports import ROUND_S, Ports
from everstep.fabric.probing import sealed
from everstep.fabric.probing.sealed import Heard, Packet
from everstep.fabric.probing.standing import Standing
from everstep.model.events import Event
from everstep.model.facts import LinkSeen, LinkState, Neighbour, PortSeen
from everstep.model.observations import LinksReported

PER_PEER_S = 0.3
"""Between two probes of one link. Four unanswered ones make it dead."""

REPORT_S = 1.0
NUM_PORTS = 4
_BATCH = 256

_log = logging.getLogger(__name__)


class Links:
    def __init__(self, node: str, run: str, secret: str, report: Callable[[Event], None]) -> None:
        """`secret`: what agents of this run have in common."""
        self._node, self._run, self._secret, self._report = node, run, secret, report
        self._task: asyncio.Task[None] | None = None
        self._rounds: _Round | None = None
        self._told: tuple[tuple[object, ...], ...] = ()

    def begin(self, generation: int, neighbours: Sequence[Neighbour], endpoint: str) -> None:
        """A generation begins: its neighbours, and none of the one before. Raises nothing."""
        self.close()
        if not neighbours or not endpoint or not self._secret:
            return
        try:
            rounds = _Round(self._node, sealed.key_of(self._secret, self._run, generation), neighbours, endpoint)
        except (OSError, ValueError) as error:
            _log.warning("links to other hosts are not watched: %s", error)
            return
        self._told, self._rounds = (), rounds
        self._task = asyncio.get_running_loop().create_task(self._watch(rounds, generation))

    def tell_again(self) -> None:
        """To a controller that may be another one."""
        self._told = ()

    def close(self) -> None:
        """At once: the next generation listens at the same port."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._rounds is not None:
            self._rounds.close()
            self._rounds = None

    async def _watch(self, rounds: "_Round", generation: int) -> None:
        told_at = read_at = float("-inf")
        counted, ports = Ports(), tuple[PortSeen, ...]()
        try:
            rounds.listen()
            while True:
                await asyncio.sleep(PER_PEER_S)
                rounds.turn()
                if time.monotonic() - read_at >= ROUND_S:
                    read_at, ports = time.monotonic(), counted.look()
                if time.monotonic() - told_at >= REPORT_S and self._tell(rounds.look(), ports, generation):
                    told_at = time.monotonic()
        except Exception:
            _log.exception("links to other hosts are not watched any more")
            self._report(LinksReported(at=time.time(), node=self._node, generation=generation, links=()))
            rounds.close()

    def _tell(self, links: tuple[LinkSeen, ...], ports: tuple[PortSeen, ...], generation: int) -> bool:
        """Only what is news, and nothing while nothing is known."""
        news = (
            *((each.to, each.state, each.dead_ports, each.state is LinkState.DEAD and each.hears) for each in links),
            *_sizes(ports),
        )
        if news == self._told or all(each.state is LinkState.UNKNOWN for each in links):
            return False
        self._told = news
        report = LinksReported(at=time.time(), node=self._node, generation=generation, links=links, ports=ports)
        self._report(report)
        return True


class _Round:
    """The sockets of one generation. Raises OSError or ValueError when they cannot be made."""

    def __init__(self, node: str, key: bytes, neighbours: Sequence[Neighbour], endpoint: str) -> None:
        self._key, self._name = key, sealed.name_of(node)
        self._session = secrets.token_bytes(sealed.SESSION_BYTES)
        host, port = _parted(endpoint)
        self._ways = {sealed.name_of(each.node): _parted(each.address) for each in neighbours}
        self._links = {sealed.name_of(each.node): Standing(each.node, NUM_PORTS) for each in neighbours}
        self._heard = {name: Heard(time.monotonic) for name in self._links}
        with contextlib.ExitStack() as made:
            self._answering = made.enter_context(_bound(host, port))
            self._sending = [made.enter_context(_bound(host, 0)) for _ in range(NUM_PORTS)]
            self._made = made.pop_all()

    def listen(self) -> None:
        asyncio.get_running_loop().add_reader(self._answering, self._answer)

    def close(self) -> None:
        """Any number of times."""
        if self._answering.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._answering)
        self._made.close()

    def turn(self) -> None:
        """Reads the echoes that have come, and sends each neighbour one probe."""
        for each in self._sending:
            for packet, _ in self._packets(each):
                if packet.is_echo and packet.session == self._session:
                    self._links[packet.sender].answer(packet.number)
        now = time.monotonic()
        for name, link in self._links.items():
            number, place = link.send(now)
            probe = Packet(False, self._name, name, self._session, number)
            with contextlib.suppress(OSError):  # then it is lost: the way is broken at its beginning
                self._sending[place].sendto(sealed.seal(self._key, probe), self._ways[name])

    def look(self) -> tuple[LinkSeen, ...]:
        now = time.monotonic()
        return tuple(link.look(now, self._heard[name].at) for name, link in self._links.items())

    def _answer(self) -> None:
        for packet, source in self._packets(self._answering):
            if not packet.is_echo and self._heard[packet.sender].take(packet):
                echo = Packet(True, self._name, packet.sender, packet.session, packet.number)
                with contextlib.suppress(OSError):
                    self._answering.sendto(sealed.seal(self._key, echo), source)

    def _packets(self, each: socket.socket) -> list[tuple[Packet, Any]]:
        """Read the packets that have come from neighbours, for this node. Everything else is dropped without a log
        line."""
        found: list[tuple[Packet, Any]] = []
        for _ in range(_BATCH):
            try:
                data, source = each.recvfrom(2048)
            except BlockingIOError:
                break
            except OSError:  # an ICMP error of an earlier packet
                continue
            packet = sealed.unseal(self._key, data)
            if packet is not None and packet.to == self._name and packet.sender in self._links:
                found.append((packet, source))
        return found


def _sizes(ports: tuple[PortSeen, ...]) -> list[tuple[str, str, int]]:
    """List each counter that grew, with the number of bits of its growth: a counter that keeps growing is not news each
    second."""
    return [(port.nic, name, value.bit_length()) for port in ports for name, value in sorted(port.grown.items())]


def _parted(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return str(ipaddress.ip_address(host.strip("[]"))), int(port)


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made
