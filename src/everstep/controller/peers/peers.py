"""The peers' end of the link: connections, reports from peers, and commands to them.

It turns messages into `Input`s on the controller's queue and counts whatever is not one; it decides nothing and never
raises because of what a peer sends. Of thousands of reports every second, nearly all need not be on record: those are
taken at once (`settle_at_once`), and their acknowledgement waits for others of the same peer.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from everstep.controller.peers import claims
from everstep.controller.peers.budget import Budget
from everstep.controller.peers.gate import Gate
from everstep.errors import WireError
from everstep.model.actions import Action
from everstep.model.events import Event
from everstep.model.spec import RunSpec
from everstep.wire import allowed, clocks
from everstep.wire.codec import decode_from_peer
from everstep.wire.messages import PROTOCOL, Ack, Beat, Command, FromController, Reject, Report, Welcome

MAX_SEQ = 1 << 62
"""A number that is none would make everything after it a duplicate."""

ACKNOWLEDGE_S = 0.1
"""Between two rounds of acknowledging what is not on record."""

ROUNDS = 40
"""After so many a report is acknowledged at the latest, however many peers there are: four seconds."""

MIN_PER_ROUND = 50
MAX_OWED = 16
"""Reports of one peer: a link counts as behind when 64 are not acknowledged."""

NUM_KEPT = 20_000
"""More than a second of reports of 12,500 agents; a longer memory would hide a bad second among good ones."""

log = logging.getLogger("everstep.controller")


@dataclass(frozen=True, kw_only=True)
class Input:
    """One thing to handle, in order of arrival."""

    event: Event
    source: str = ""  # peer that reported it; empty: the controller's own
    seq: int = 0
    arrived: float = 0.0  # monotonic; 0: it did not come from a peer
    settled: Callable[[bool], None] | None = None  # called with whether it went on record (HTTP requests wait for it)

    @property
    def key(self) -> str:
        """Recognises the same input after a crash."""
        return f"{self.source}:{self.seq}" if self.source else f"own:{self.event!r}"


class Handled(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. None: nothing was handled yet."""

    median_s: float | None
    p99_s: float | None
    worst_s: float | None = None
    num: int  # that these figures are of


class Handling:
    """How long reports wait from their arrival until they are settled, over the newest ones."""

    def __init__(self, num_kept: int = NUM_KEPT) -> None:
        self._newest: deque[float] = deque(maxlen=num_kept)

    def note(self, took_s: float) -> None:
        self._newest.append(took_s)

    def figures(self) -> Handled:
        took = sorted(self._newest)
        if not took:
            return Handled(median_s=None, p99_s=None, num=0)
        p99 = took[math.ceil(0.99 * len(took)) - 1]
        return Handled(median_s=took[len(took) // 2], p99_s=p99, worst_s=took[-1], num=len(took))


class Line(Protocol):
    """A peer's connection."""

    def send(self, message: FromController) -> None: ...

    def end(self, why: str) -> None: ...

    def go_on(self) -> None: ...


class Peer:
    """One connection of an authenticated peer."""

    __slots__ = ("ahead_s", "line", "machine", "name", "num_owed", "role", "send", "settled")

    def __init__(self, name: str, role: str, line: Line, ahead_s: float = 0.0, machine: str = "") -> None:
        self.name = name
        self.role = role
        self.line = line
        self.send = line.send
        self.ahead_s = ahead_s  # its clock, of ours
        self.machine = machine  # that its key is of
        self.settled = 0  # newest report of this connection that is settled
        self.num_owed = 0  # ... and how many were not acknowledged


class Listener(Protocol):
    """The receiver of what peers report: the controller."""

    def last_seq(self, name: str) -> int:
        """The sequence number of this peer's newest report on record."""
        ...

    def connected(self, peer: Peer) -> None: ...

    def heard(self, name: str) -> None:
        """Something of this peer arrived, whatever it was."""
        ...

    def settle_at_once(self, name: str, seq: int, event: Event) -> bool:
        """Whether nothing of this report has to wait for the queue."""
        ...


class Peers:
    """Reports that `listener` does not settle at once go into the queue `put`."""

    def __init__(
        self,
        *,
        spec: RunSpec,
        gate: Gate,
        put: "asyncio.Queue[Input]",
        listener: Listener,
    ) -> None:
        self._spec = spec
        self._queue = put
        self._listener = listener
        self._connected: dict[str, Peer] = {}
        self._launchers: dict[str, Peer] = {}
        self._rejections = gate.rejections
        self._budgets: dict[str, Budget] = {}  # as many as there are peers with a key
        self._queued: dict[str, int] = {}  # peer -> its reports in the queue
        self._stuck: deque[tuple[Peer, Input]] = deque()  # the queue is full: nothing more is read of these
        self._turn_at = 0.0
        self.handling = Handling()
        self._owed: dict[str, Peer] = {}  # in the order in which they are acknowledged

    def get(self, name: str) -> Peer | None:
        return self._connected.get(name)

    def __len__(self) -> int:
        return len(self._connected)

    @property
    def names(self) -> list[str]:
        return sorted(self._connected)

    def launcher(self) -> Peer | None:
        return next(iter(self._launchers.values()), None)

    def agents(self) -> list[Peer]:
        return [peer for peer in self._connected.values() if peer.role == "agent"]

    def send(self, peer: Peer, command_id: str, action: Action) -> None:
        peer.send(Command(id=command_id, action=action))

    def turn_out(self, name: str, why: str) -> None:
        """Turn out a node that left the run: it ends itself on the reject."""
        peer = self._connected.get(name)
        if peer is not None:
            peer.send(Reject(why=why))

    def admit(self, peer: Peer, proof: str) -> None:
        """It has proven who it is."""
        if peer.ahead_s:
            log.warning(
                "the clock of %s is %+.1f s ahead of ours: its times are moved by that", peer.name, peer.ahead_s
            )
        earlier = self._connected.get(peer.name)
        if earlier is not None:  # the newer connection is the one whose other end still lives
            self._rejections.note("replaced-link", f"{peer.name} connected again")
            self.leave(earlier)
            earlier.line.end("the same peer connected again")
        self._connected[peer.name] = peer
        if peer.role == "launcher":
            self._launchers[peer.name] = peer
        last_seq = self._listener.last_seq(peer.name)
        peer.send(Welcome(protocol=PROTOCOL, spec=self._spec, last_source_seq=last_seq, proof=proof))
        self._listener.connected(peer)
        self._listener.heard(peer.name)

    def leave(self, peer: Peer) -> None:
        """Its connection is gone, or another one took its place."""
        if self._connected.get(peer.name) is peer:
            del self._connected[peer.name]
            self._launchers.pop(peer.name, None)
            self._owed.pop(peer.name, None)

    def spend(self, name: str, units: float) -> float:
        """Seconds for which this peer is not to be read, so that a talkative one slows down no other."""
        now = time.monotonic()
        budget = self._budgets.get(name)
        if budget is None:
            budget = self._budgets[name] = Budget(now)
        return budget.spend(units, now)

    def hear(self, peer: Peer, data: bytearray, *, is_binary: bool) -> bool:
        """One message. False: there is no room for its report, and `go_on` is called when there is."""
        name = peer.name
        if self._connected.get(name) is not peer:
            return True
        self._listener.heard(name)
        report = self._believed(peer, data, is_binary=is_binary)
        if report is None:
            return True
        event = clocks.moved(report.event, -peer.ahead_s) if peer.ahead_s else report.event
        event = claims.cut(event, peer.machine, time.time())
        arrived = self._turn_began_at()
        if name not in self._queued and self._listener.settle_at_once(name, report.source_seq, event):
            self._owe(peer, report.source_seq)
            self.handling.note(time.monotonic() - arrived)
            return True
        item = Input(event=event, source=name, seq=report.source_seq, arrived=arrived)
        self._queued[name] = self._queued.get(name, 0) + 1
        if self._queue.full():  # it keeps its reports until they are acknowledged
            self._stuck.append((peer, item))
            return False
        self._queue.put_nowait(item)
        return True

    def make_room(self) -> None:
        """Something was taken out of the queue."""
        while self._stuck and not self._queue.full():
            peer, item = self._stuck.popleft()
            self._queue.put_nowait(item)
            peer.line.go_on()

    def settle(self, item: Input, *, recorded: bool) -> None:
        """A report that was in the queue is on record, or will never be."""
        source, seq = item.source, item.seq
        self.handling.note(time.monotonic() - item.arrived)
        left = self._queued.get(source, 0) - 1
        if left > 0:
            self._queued[source] = left
        else:
            self._queued.pop(source, None)
        peer = self._connected.get(source)
        if peer is not None:
            self._owe(peer, seq)
            if recorded:
                self._acknowledge(peer)

    async def acknowledge(self) -> None:
        """Send the acknowledgements that are owed, a part of the peers at a time, until cancelled."""
        while True:
            await asyncio.sleep(ACKNOWLEDGE_S)
            for name in list(self._owed)[: max(MIN_PER_ROUND, math.ceil(len(self._owed) / ROUNDS))]:
                self._acknowledge(self._owed[name])

    def _turn_began_at(self) -> float:
        """When the loop began to read what had arrived: a report also waits for those that are read before it."""
        if not self._turn_at:
            self._turn_at = time.monotonic()
            asyncio.get_running_loop().call_soon(self._end_turn)
        return self._turn_at

    def _end_turn(self) -> None:
        self._turn_at = 0.0

    def _owe(self, peer: Peer, seq: int) -> None:
        peer.settled = max(peer.settled, seq)
        peer.num_owed += 1
        if peer.num_owed >= MAX_OWED:
            self._acknowledge(peer)
        elif peer.name not in self._owed:
            self._owed[peer.name] = peer

    def _acknowledge(self, peer: Peer) -> None:
        self._owed.pop(peer.name, None)
        peer.num_owed = 0
        peer.send(Ack(source_seq=peer.settled))

    def _believed(self, peer: Peer, data: bytearray, *, is_binary: bool) -> Report | None:
        """None, counted, for whatever is no report that this peer may make."""
        try:
            if not is_binary:
                raise WireError("a text frame")
            report = decode_from_peer(data)
            if isinstance(report, Beat):
                return None
            if not isinstance(report, Report) or not 1 <= report.source_seq <= MAX_SEQ:
                raise WireError(f"{type(report).__name__} where a numbered Report is expected")
        except WireError as error:
            self._rejections.note("garbage", f"{peer.name} sent something that is not a report: {error}")
            return None
        objection = allowed.objection(peer.role, peer.name, report.event)
        objection = objection or claims.objection(report.event, peer.machine)
        if objection:
            self._rejections.note("wrong-role", objection)
            return None
        return report
