"""All hosts meet at the endpoint as for a run, exchange their facts, and try each pair. Nothing is started.

The host that owns the endpoint collects, judges and sends the result to all, so each prints the same. Called by
`everstep doctor --hosts`.
"""

import asyncio
import contextlib
import secrets
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from everstep.engines.hosts.door import Door, Line
from everstep.errors import UnreachableError, WireError
from everstep.launcher.arguments.hosts import Hosts
from everstep.launcher.reach.reaching import Connection, reach
from everstep.launcher.rundir.keys import Keys
from everstep.launcher.survey.answering import answer, facts_of, why_not
from everstep.launcher.survey.judging import judge
from everstep.version import __version__
from everstep.wire.credentials import CERTIFICATE_NAME, KEY_NAME
from everstep.wire.joining import Join, JoinToken
from everstep.wire.survey import ClockAsked, ClockTold, Facts, Findings, Peer, Peers, Reached

NUM_CLOCKS = 5
_PAIRS_S = 30.0
_FLUSH_S = 0.3


class _Surveyed:
    """One host, as the first one knows it."""

    def __init__(self, facts: Facts, offset: float) -> None:
        self.facts, self.offset = facts, offset
        self.whys: tuple[str, ...] = ()
        self.has_tried = asyncio.Event()


class _Head:
    def __init__(self, num: int, own: Facts, say: Callable[[str], None]) -> None:
        self._num, self._say = num, say
        self.all = [_Surveyed(own, 0.0)]
        self.are_there = asyncio.Event()
        self.are_judged = asyncio.Event()
        self.found: Findings | None = None

    async def welcome(self, join: Join, line: Line) -> None:
        """Serve one host's connection. Raises WireError, EOFError, OSError."""
        facts = await line.receive()
        if not isinstance(facts, Facts) or self.are_there.is_set():
            raise WireError("not a host that is awaited")
        host = _Surveyed(facts, await _offset(line))
        if self.are_there.is_set():  # the others have the list of hosts already
            raise WireError("not a host that is awaited")
        self.all.append(host)
        self._say(f"{facts.host} ({facts.address}) is there, {len(self.all)} of {self._num}")
        if len(self.all) >= self._num:
            self.are_there.set()
        await self.are_there.wait()
        line.send(Peers(peers=self.peers))
        reached = await line.receive()
        if isinstance(reached, Reached) and len(reached.whys) == len(self.all):
            host.whys = reached.whys
            host.has_tried.set()
        await self.are_judged.wait()
        if self.found is not None:
            line.send(self.found)
        await asyncio.sleep(_FLUSH_S)

    @property
    def peers(self) -> tuple[Peer, ...]:
        return tuple(Peer(host=each.facts.host, address=each.facts.address, port=each.facts.port) for each in self.all)

    async def conclude(self, limit_s: float) -> Findings:
        """Wait for the hosts, for their pairs, and judge."""
        await _within(self.are_there.wait(), limit_s)
        self.are_there.set()
        own = self.all[0]
        own.whys = await _try(self.peers)
        own.has_tried.set()
        await _within(asyncio.gather(*(each.has_tried.wait() for each in self.all)), _PAIRS_S)
        unreached: dict[tuple[int, int], str] = {}
        for one, host in enumerate(self.all):
            whys = host.whys or ("it has not said within half a minute whom it reaches",) * len(self.all)
            unreached |= {(one, other): why for other, why in enumerate(whys) if why and other != one}
        hosts, offsets = [each.facts for each in self.all], [each.offset for each in self.all]
        found = tuple(judge(hosts, offsets, unreached, self._num))
        self.found = Findings(hosts=tuple(hosts), offsets=tuple(offsets), findings=found)
        self.are_judged.set()
        return self.found


async def lead(
    hosts: Hosts, sock: socket.socket, token: JoinToken, torch: str, limit_s: float, say: Callable[[str], None]
) -> Findings:
    """On the host that owns the endpoint. Raises EverstepError, OSError."""
    address = str(sock.getsockname()[0])
    with tempfile.TemporaryDirectory() as folder:
        Keys(Path(folder), "survey").certify()
        async with await answer(address) as server:
            own = await asyncio.to_thread(facts_of, address, _port(server), torch)  # a name may take seconds
            head = _Head(hosts.num, own, say)
            door = Door(sock, Path(folder) / CERTIFICATE_NAME, Path(folder) / KEY_NAME, token, head.welcome)
            await door.open()
            try:
                found = await head.conclude(limit_s)
                await asyncio.sleep(2 * _FLUSH_S)
                return found
            finally:
                await door.close()


async def attend(hosts: Hosts, token: JoinToken, torch: str, limit_s: float, say: Callable[[str], None]) -> Findings:
    """On another host. Raises EverstepError, OSError."""
    connection = await reach(hosts, lambda: token, say)
    try:
        async with await answer(connection.here) as server, asyncio.timeout(limit_s + 2 * _PAIRS_S):
            facts = await asyncio.to_thread(facts_of, connection.here, _port(server), torch)
            connection.send(
                Join(
                    session=secrets.token_hex(16),
                    host=facts.host,
                    address=facts.address,
                    everstep_version=__version__,
                    torch_version=torch,
                )
            )
            connection.send(facts)
            return await _be_asked(connection)
    except (EOFError, TimeoutError, WireError) as error:
        raise UnreachableError(f"the host at {hosts.endpoint} has gone before it said what is wrong") from error
    finally:
        await connection.close()


async def _be_asked(connection: Connection) -> Findings:
    while True:
        match await connection.receive():
            case ClockAsked():
                connection.send(ClockTold(at=time.time()))
            case Peers(peers=peers):
                connection.send(Reached(whys=await _try(peers)))
            case Findings() as found:
                return found
            case _:
                raise WireError("a run is there, and not `everstep doctor --hosts`")


async def _try(peers: tuple[Peer, ...]) -> tuple[str, ...]:
    return tuple(await asyncio.gather(*(why_not(peer) for peer in peers)))


async def _offset(line: Line) -> float:
    """The offset of the host's clock, from the quickest of some answers."""
    found = []
    for _ in range(NUM_CLOCKS):
        asked_at, began = time.time(), time.monotonic()
        line.send(ClockAsked())
        told = await line.receive()
        if not isinstance(told, ClockTold):
            raise WireError("it does not say what time it is")
        took_s = time.monotonic() - began
        found.append((took_s, told.at - (asked_at + took_s / 2)))
    return min(found)[1]


async def _within(waiting: Awaitable[object], limit_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await waiting


def _port(server: asyncio.Server) -> int:
    return int(server.sockets[0].getsockname()[1])
