"""Nodes on this host and on those that joined: one node each. An `Engine` round the local one.

A request for a node takes one of a host without any, in the order in which the hosts came; without such a host the
request waits until one comes. Nothing that a lost node held is promised to its successor (`Loss.kept`): the next one
may be on another host, and one on the same host reports itself what it finds in memory.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from everstep.engines.hosts.admission import Known, Shape
from everstep.engines.hosts.announcing import Announcer
from everstep.engines.hosts.door import Line
from everstep.engines.hosts.files import Received
from everstep.engines.hosts.first_host import FirstHost, Heirs
from everstep.engines.hosts.host import Host
from everstep.engines.hosts.roster import Roster
from everstep.engines.hosts.sparing import Sparing
from everstep.engines.local import LocalEngine
from everstep.engines.protocol import Loss, NoNodeError, OnLoss
from everstep.errors import WireError
from everstep.wire.heirs import HasJournal, HasRoster, PulseHeard, Ready
from everstep.wire.joining import (
    PING_S,
    Admitted,
    Ahead,
    Bye,
    EndNode,
    FromHost,
    Got,
    Join,
    Leaving,
    NodeEnded,
    Over,
    Piece,
    Ping,
    Refused,
    StartNode,
    StopAsked,
)
from everstep.wire.strangers.rejections import Rejections

RETRY_S = 0.5
AGAIN_S = 2.0
"""A host whose agent has just ended early gets no other one at once."""

EARLY_END_S = 5.0
ASK_S, MAX_ASKED = 0.1, 8
"""Between two looks whether a host that is to end its node answers, and how many: then others decide."""

MAX_AHEAD_BYTES = 1 << 20
MAX_REASON_CHARS = 1000
"""Limit for another host's words in the journal."""

HEAD = "head"
_END_GRACE_S = 10.0

log = logging.getLogger("everstep.launcher")


class HostsEngine:
    """An `Engine`. Lives in the launcher's event loop.

    `spec`: spec.json. `port`: where agents
    find the controller, at the endpoint's address. `ahead`: where nodes of this host write what ranks import later.
    `lease_s`: after so long without a sign of life a node's own ranks stand still.
    """

    def __init__(
        self,
        local: LocalEngine,
        *,
        run: str,
        shape: Shape,
        spec: bytes,
        port: int,
        node_rank: int | None,
        host: str,
        first: FirstHost,
        received: Received,
        ahead: Path,
        lease_s: float,
        on_stop: Callable[[int, str], None] = lambda number, why: None,
        job: str = "",
        heirs: Heirs | None = None,
        earlier: Mapping[str, int] | None = None,
    ) -> None:
        """`on_stop`: another host reports that the scheduler has sent this signal to the whole job; only hosts that
        have proven to be of `job` are believed, and without a job none. `heirs`: receives what hosts report about
        succession. `earlier`: another host was the first one; numbers of hosts by public session."""
        self._heirs = heirs
        self._earlier = earlier
        self._on_stop, self._job = on_stop, job
        self._local = local
        self._run, self._spec, self._port = run, spec, port
        self._roster = Roster(shape, Known(session=HEAD, host=host, node_rank=node_rank), local, earlier)
        self._first = first
        self._announcer = Announcer(first.say, shape.num_hosts)
        self._sparing = Sparing(self._roster, local, lease_s, lambda host, node: self._lose_if_silent(host, node, 0))
        self._received = received
        self._ahead = ahead
        self._lease_s = lease_s
        self._known: set[str] = set()
        self._wanted: deque[str] = deque()  # urgent ones first
        self._urgent: set[str] = set()
        self._given_up = ""  # why this host gets no node any more
        self._has_local = earlier is not None and bool(local.pids)  # one of this host was asked for, and lives
        self._leaving = ""  # ... it, while it is ended without a loss
        self._over: Over | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._on_loss: OnLoss = lambda loss: None
        self._rejections = Rejections(log=log)

    def watch(self, on_loss: OnLoss) -> None:
        self._on_loss = on_loss
        self._local.watch(self._lose_local)

    def prepare(self, number: int) -> None:
        """The one of this host; others are started when theirs are there."""
        if self._earlier is None:
            self._local.prepare(min(number, 1))

    def acquire(self, request: str, *, is_urgent: bool = True) -> None:
        if request in self._known or self._over is not None:
            return
        self._known.add(request)
        if is_urgent:  # a slot waits; what only replaces a standby comes after it
            self._wanted.insert(sum(each in self._urgent for each in self._wanted), request)
            self._urgent.add(request)
        else:
            self._wanted.append(request)
        self._serve()

    def release(self, node: str) -> None:
        self._end_node(node, "release")

    def evict(
        self, node: str, why: str = "", *, is_silent: bool = False, is_drill: bool = False, may_spare: bool = False
    ) -> str:
        why_spared = self._sparing.spare(node) if may_spare else ""
        if why_spared:
            return why_spared
        if not is_silent and not is_drill:
            self._give_up(node, why[:MAX_REASON_CHARS] or "it was evicted")
        self._end_node(node, "evict")
        return ""

    def _give_up(self, node: str, why: str) -> None:
        """Use the node's machine for no other node: it is broken, or is needed elsewhere."""
        host = self._roster.give_up(node, why)
        if host is not None and host.given_up:
            self._first.say(f"host {host.number}: {host.name} is given up: {why}")
        elif node in self._local.pids:
            self._given_up = why
            self._first.say(f"no node is started on this host any more ({why}); it keeps the controller until it ends")

    def fence(self, node: str) -> None:
        self._end_node(node, "fence")

    def lose(self, node: str) -> None:
        self._drill(node, "lose", lambda: self._local.lose(node))

    def freeze(self, node: str, seconds: float) -> None:
        self._drill(node, "freeze", lambda: self._local.freeze(node, seconds), seconds)

    def cut(self, node: str, seconds: float) -> None:
        raise NoNodeError("the network between the hosts of this run is not everstep's, so it cuts nothing there")

    def flap(self, node: str) -> None:
        self.cut(node, 0.0)

    def announce(self, over: Over) -> None:
        """Announce the end of the run: hosts end with this, and none joins any more."""
        self._over = over
        for host in self._roster:
            if host.line is not None:
                host.line.send(over)

    def forsake(self, over: Over) -> None:
        """The other hosts may have another first host by now: nothing more is said to them."""
        self._over = over
        for host in self._roster:
            if host.line is not None:
                host.line.abort()
            host.is_done = True

    @property
    def was_complete(self) -> bool:
        """Whether all hosts have been there once: a host that is missing now is lost."""
        return self._roster.was_complete

    @property
    def local_nodes(self) -> tuple[str, ...]:
        return tuple(self._local.pids)

    def waiting(self) -> frozenset[str]:
        """Requests for which there is no host."""
        return frozenset(self._wanted)

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The other ones, in order of arrival."""
        return tuple(self._roster)

    async def end(self, grace_s: float, *, spares: bool = False) -> None:
        if self._retry is not None:
            self._retry.cancel()
        if self._over is None:
            self.announce(Over(exit_code=1, outcome="failed", why="the first host has ended"))
        await self._local.end(grace_s, spares=spares)
        ends_at = time.monotonic() + _END_GRACE_S
        while time.monotonic() < ends_at and any(each.is_ending for each in self._roster):
            await asyncio.sleep(0.02)

    async def welcome(self, join: Join, line: Line) -> None:
        """The life of one connection of a host. Raises WireError, EOFError, OSError."""
        why = self._objection(join)
        if why:
            may_pass = self._over is None and self._roster.is_in_its_own_way(join)
            line.send(Refused(why=why, may_pass=may_pass))
            log.warning("a host was refused%s: %s", " for now" if may_pass else "", why)
            if not may_pass:
                self._first.say(f"a host was refused: {why}")
            return
        host = self._take_in(join, line)
        pinging = asyncio.create_task(self._keep_informed(line))
        try:
            while not host.is_done:
                message = await line.receive()
                host.heard_at = time.monotonic()
                self._hear(host, message)
        finally:
            pinging.cancel()
            if host.line is line:
                host.line = None
                if self._roster.is_fenced(host.node):
                    host.node = ""
                self._note_away(host)

    def _objection(self, join: Join) -> str:
        if self._over is not None:
            return f"run {self._run} is over ({self._over.outcome})"
        return self._roster.objection(join)

    def _take_in(self, join: Join, line: Line) -> Host:
        host = self._roster.find(join)
        if host is None:
            host = self._roster.add(join)
            self._say(host, "joined")
        elif host.line is not None:
            host.line.close()
        host.line, host.heard_at = line, time.monotonic()
        host.is_of_job = host.is_of_job or line.is_of_job
        host.join = msgspec.structs.replace(host.join, journal=join.journal)  # what it has kept by now
        line.send(
            Admitted(
                run=self._run,
                number=host.number,
                num_hosts=self._roster.shape.num_hosts,
                spec=self._spec,
                port=self._port,
                has=self._received.of(join.session),
                epoch=self._heirs.epoch if self._heirs is not None else 1,
                endpoints=self._heirs.endpoints if self._heirs is not None else (),
            )
        )
        if self._heirs is not None:
            self._heirs.joined(host)
        for node in join.nodes:
            if self._roster.is_fenced(node):
                line.send(EndNode(node=node, how="fence"))
        if host.given_up and not host.leaves:
            line.send(EndNode(node=host.node, how="evict", given_up=host.given_up))
        if host.node and host.node not in join.nodes:
            self._forget_node(host, host.node, "its agent ended while its host was cut off")
        self._serve()
        return host

    async def _keep_informed(self, line: Line) -> None:
        """A sign of life, and what its spares should import ahead."""
        told = (0, 0)
        while True:
            await asyncio.sleep(PING_S)
            line.send(Ping())
            with contextlib.suppress(OSError):
                found = self._ahead.stat()
                if (found.st_mtime_ns, found.st_size) != told and found.st_size <= MAX_AHEAD_BYTES:
                    told = (found.st_mtime_ns, found.st_size)
                    line.send(Ahead(data=self._ahead.read_bytes()))

    def _note_away(self, host: Host) -> None:
        if self._over is None and not host.is_done:
            self._say(host, "is not connected")

    def _say(self, host: Host, what: str) -> None:
        self._announcer.say(f"host {host.number}: {host.name} {what}")

    def _hear(self, host: Host, message: FromHost) -> None:
        match message:
            case NodeEnded(node=node) if node in host.nodes or self._roster.may_have_run(node):
                host.nodes.add(node)
                self._on_ended(host, message)
            case Piece():
                try:
                    address = host.line.peer if host.line is not None else ""
                    upto = self._received.take(host.join.session, frozenset(host.nodes), message, address)
                except (WireError, OSError) as error:
                    self._rejections.note("file", f"a file of {host.name} was not taken: {error}")
                    upto = message.at + len(message.data)  # not asked for again
                if host.line is not None:
                    host.line.send(Got(path=message.path, upto=upto))
            case Leaving(why=why):
                if not host.leaves:
                    why = why[:MAX_REASON_CHARS]
                    self._first.say(f"host {host.number}: {host.name} leaves: {why}")
                    host.leaves = f"its host leaves: {why}"
            case StopAsked(why=why, signal=number) if self._job and host.is_of_job:
                self._on_stop(number, f"{why[:MAX_REASON_CHARS]} on {host.join.host}")
            case Bye():  # by now nothing of its node runs
                host.is_done = True
                if host.node:
                    self._forget_node(host, host.node, host.leaves or "its host has ended")
            case Ping(late=late):
                host.late = late
            case Ready() | HasJournal() | HasRoster() | PulseHeard() if self._heirs is not None:
                self._heirs.hear(host, message)
            case _:
                self._rejections.note("wrong-role", f"{host.name} said {type(message).__name__}, which no host says")

    def _on_ended(self, host: Host, ended: NodeEnded) -> None:
        if time.monotonic() - host.started_at < EARLY_END_S:
            host.not_before = time.monotonic() + AGAIN_S
        reason = f"{ended.reason[:MAX_REASON_CHARS]} (on {host.join.host[:MAX_REASON_CHARS]})"
        self._forget_node(host, ended.node, reason, exit_code=ended.exit_code, signal=ended.signal)

    def _forget_node(
        self,
        host: Host,
        node: str,
        reason: str,
        *,
        exit_code: int | None = None,
        signal: int | None = None,
        stays: bool = False,
    ) -> None:
        """`stays`: it may still run there, so its host is not free."""
        if host.node == node and not stays:
            host.node = ""
        if self._over is None and self._roster.fence(node):
            self._lose(Loss(node=node, at=time.time(), reason=reason, exit_code=exit_code, signal=signal))
        self._serve()

    def _lose(self, loss: Loss) -> None:
        self._on_loss(loss)
        self._serve()

    def _lose_local(self, loss: Loss) -> None:
        self._has_local = False
        self._lose(msgspec.structs.replace(loss, kept=()))

    def _end_node(self, node: str, how: str) -> None:
        host = self._roster.host_of(node)
        if host is None:
            if node in self._local.pids and how != "evict":
                self._leaving = node
            getattr(self._local, how)(node)
            if self._earlier is not None and node not in self._local.pids:
                self._end_unknown(node, how)
        else:
            self._end_elsewhere(host, node, how)
        self._serve()

    def _end_unknown(self, node: str, how: str) -> None:
        """Its host has not come to this one, which has the controller now: it hears of it when it does."""
        is_new = self._roster.fence(node)
        if how == "evict" and is_new and self._over is None:
            self._lose(Loss(node=node, at=time.time(), reason="its host has not come back since the controller moved"))

    def _end_elsewhere(self, host: Host, node: str, how: str) -> None:
        """End a node on another host. A host that was silent cannot be asked: the node's lease was over before its end
        was requested, so it counts as lost, and its host ends it when it comes back."""
        if host.line is not None and host.node == node:
            host.line.send(EndNode(node=node, how=how, given_up=host.given_up))
        if how == "evict":
            self._lose_if_silent(host, node, MAX_ASKED)
        else:
            self._roster.fence(node)
            if host.line is None and host.node == node:
                host.node = ""

    def _lose_if_silent(self, host: Host, node: str, left: int) -> None:
        if host.node != node or self._roster.is_fenced(node) or self._over is not None:
            return
        if host.line is None or time.monotonic() - host.heard_at > self._lease_s:
            reason = f"its host {host.join.host} cannot be reached, and its lease is over"
            self._forget_node(host, node, reason, stays=host.line is not None)
        elif left:
            asyncio.get_running_loop().call_later(ASK_S, self._lose_if_silent, host, node, left - 1)

    def _drill(self, node: str, how: str, here: Callable[[], None], seconds: float = 0.0) -> None:
        host = self._roster.host_of(node)
        if host is None:
            here()
        elif host.line is None or host.node != node:
            raise NoNodeError(f"{node} is not connected")
        else:
            host.line.send(EndNode(node=node, how=how, seconds=seconds))

    def _serve(self) -> None:
        """Give what is wanted, as far as there are hosts."""
        if self._leaving and self._leaving not in self._local.pids:
            self._has_local, self._leaving = False, ""
        try:
            while self._wanted and self._over is None and self._serve_one(self._wanted[0]):
                self._wanted.popleft()
        except NoNodeError as error:
            log.warning("%s; trying again", error)
        if self._wanted and self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._serve_again)

    def _serve_one(self, request: str) -> bool:
        """False: there is no host for it now. Raises NoNodeError."""
        if not self._has_local and not self._given_up:
            self._local.acquire(request)
            self._has_local = True
            return True
        host = self._roster.idle()
        if host is not None:
            self._start_on(host)
        return host is not None

    def _serve_again(self) -> None:
        self._retry = None
        self._serve()

    def _start_on(self, host: Host) -> None:
        node = self._local.new_name()
        host.node, host.started_at = node, time.monotonic()
        host.nodes.add(node)
        assert host.line is not None
        host.line.send(StartNode(node=node, credentials=self._first.credentials(node, host.machine)))
        log.info("%s is started on host %d, %s", node, host.number, host.name)
