"""Hosts of one run that keep its journal and vote, in one process: the real `Heir`, `Copying`, `Ballot` and `Voting`,
on a clock that jumps, with clocks of their own rates, over connections that are slow, cut, or cut one way.

What is not real: the network, the launchers' processes, and the controller, which writes numbered records and acts on a
record when that counts. `Fleet.acted` is what any controller ever acted on, and raises where two of them disagree.
"""

import asyncio
import contextvars
import random
import selectors
from collections import deque
from pathlib import Path
from types import SimpleNamespace

from everstep.engines.hosts.host import Host
from everstep.errors import WireError
from everstep.launcher.heirs.asking import who
from everstep.launcher.heirs.copying import Copying
from everstep.launcher.heirs.heir import Heir
from everstep.launcher.heirs.proving import Acquaintances
from everstep.launcher.heirs.quorum import to_elect
from everstep.launcher.hosts.fleet import CONFIRMED_WITHIN
from everstep.launcher.succession.taking_over import SLACK_S
from everstep.wire.heirs import HAS_CONTROLLER, AskVote, AskWho, Lead, Legacy, Vote, Voter, public
from everstep.wire.joining import PING_S, Admitted, Join, Ping

SILENT_S = 3.5
LEASE_S = 0.85 * SILENT_S
LOOK_S = 0.2
TCP_GIVES_UP_S = 6.0
LEGACY = Legacy(secret="s", certificate="", key="", snapshots_certificate="", snapshots_key="")
HERE: contextvars.ContextVar["Machine"] = contextvars.ContextVar("here")


class JumpingLoop(asyncio.SelectorEventLoop):
    """Nobody waits: when nothing is ready, it is later."""

    def __init__(self) -> None:
        self.at = 1000.0
        loop = self

        class Selector(selectors.SelectSelector):
            def select(self, timeout=None):
                ready = super().select(0)
                if not ready and timeout:
                    loop.at += timeout
                return ready

        super().__init__(Selector())

    def time(self) -> float:
        return self.at


class End:
    """One side of a connection: what both `Connection` and `Line` are to those who use them."""

    def __init__(self, fleet: "Fleet", here: "Machine", there: "Machine", voter: str) -> None:
        self.here, self.there, self.voter = here, there, voter
        self.far: End = self
        self.is_over = False
        self._fleet = fleet
        self._came: asyncio.Queue[object] = asyncio.Queue()
        self._out: deque[object] = deque()
        self._sending: asyncio.Task[None] | None = None

    def send(self, message: object) -> None:
        if not self.is_over:
            self._out.append(message)
            if self._sending is None or self._sending.done():
                self._sending = self._fleet.begin(self._send_all())

    async def _send_all(self) -> None:
        while self._out:
            await asyncio.sleep(self._fleet.delay_s())
            tried_s = 0.0
            while not self._fleet.passes(self.here, self.there):
                await asyncio.sleep(0.1)
                tried_s += 0.1
                if tried_s > TCP_GIVES_UP_S:
                    self.abort()
                    return
            if self._out:
                self.far._came.put_nowait(self._out.popleft())

    @property
    def num_unsent(self) -> int:
        return len(self._out)

    async def receive(self) -> object:
        message = await self._came.get()
        if message is None:
            raise EOFError
        return message

    def abort(self) -> None:
        for end in (self, self.far):
            end.is_over = True
            end._came.put_nowait(None)

    async def close(self) -> None:
        self.abort()


class Machine:
    """One host's launcher. `copying`: it has the controller; `heir`: it has joined."""

    def __init__(self, fleet: "Fleet", number: int, rate: float) -> None:
        self.fleet, self.number, self.rate = fleet, number, rate
        self.session, self.offset = f"s{number}", 1000.0 * number
        self.folder = fleet.folder / f"h{number}"
        self.folder.mkdir()
        self.copying: Copying | None = None
        self.heir: Heir | None = None
        self.has_ended = ""
        self.said: list[str] = []
        self.confirmed_at = float("-inf")
        self.leader: Voter | None = None
        self.acted_at, self._safe = float("-inf"), 0
        self._end: End | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.context = contextvars.copy_context()
        self.context.run(HERE.set, self)

    def clock(self) -> float:
        return self.offset + self.fleet.loop.time() * self.rate

    @property
    def voter(self) -> Voter:
        number = self.number
        return Voter(number=number, session=public(self.session), host=f"h{number}", address=f"10.0.0.{number}", port=1)

    def start(self, work) -> None:
        self._tasks.append(self.fleet.begin(work, self.context))

    async def close(self) -> None:
        if self.copying is not None and self.copying.controllers_end.fileno() >= 0:
            await self.copying.close()
        if self.heir is not None:
            self.heir.replica.close()

    # the host that has the controller

    def lead(self, **more) -> None:
        keys = self.heir.keys if self.heir is not None else Acquaintances(self.session, {})
        self.copying = Copying(
            journal=self.folder / "journal.jsonl",
            own=self.voter,
            acquaintances=keys,
            session=self.session,
            legacy=LEGACY,
            patience_s=CONFIRMED_WITHIN * SILENT_S,
            limit_s=600.0,
            host=self,
            **more,
        )
        self.keys = keys
        self.copying.start()
        self.start(self._control(more.get("begins_at", 0)))

    def nodes(self) -> tuple[str, ...]:
        return (f"n{self.number}",)

    def note_confirmed(self, at: float) -> None:
        self.confirmed_at = max(self.confirmed_at, at)

    async def newest_epoch(self, roster) -> int:
        return await who([each for each in roster.voters if each.session != public(self.session)], self.keys)

    def end(self, why: str) -> None:
        self.has_ended = why

    def say(self, text: str) -> None:
        self.said.append(text)

    async def _control(self, size: int) -> None:
        """A record every 0.3 s; what counts is acted on."""
        assert self.copying is not None
        path, sock = self.folder / "journal.jsonl", self.copying.controllers_end
        sock.setblocking(False)
        number = 0
        while not self.has_ended:
            with path.open("ab") as file:
                size += file.write(f"{self.copying.epoch}:{self.number}:{number}\n".encode())
            number += 1
            sock.send(str(size).encode())
            for _ in range(6):
                await asyncio.sleep(0.05)
                self._act(path, sock)
        await self.copying.close()

    def _act(self, path: Path, sock) -> None:
        while True:
            try:
                safe = int(sock.recv(64))
            except BlockingIOError:
                return
            if safe > self._safe and not self.has_ended:
                self._safe = safe
                self.acted_at = self.fleet.loop.time()
                self.fleet.act(self, path.read_bytes()[:safe])

    # a host that joined

    def join(self) -> None:
        self.heir = Heir(
            self.folder, session=self.session, address="", token=None, silent_s=SILENT_S, on_led=self._on_led
        )
        self.heir.begin(1)
        self.start(self._follow(self.heir))
        self.start(self._elect(self.heir))

    def _on_led(self, leader: Voter) -> None:
        self.leader = leader
        if self._end is not None:
            self._end.abort()

    async def _follow(self, heir: Heir) -> None:
        """As `Member` and `Candidacy` do."""
        asked = 0
        while not self.has_ended:
            voters = [each for each in (heir.roster.voters if heir.roster else ()) if each.session != heir.keys.own]
            target = self.leader or (voters[asked % len(voters)] if voters else self.fleet.machines[0].voter)
            asked, self.leader = asked + 1, None
            try:
                async with asyncio.timeout(1.0):
                    end = await self.fleet.connect(self, self.fleet.of(target.session))
                await self._converse(heir, end)
            except (TimeoutError, EOFError, WireError, OSError):
                await asyncio.sleep(0.05)

    async def _converse(self, heir: Heir, end: End) -> None:
        self._end = end
        minding = asyncio.create_task(self._mind(heir, end))
        try:
            join = Join(
                session=self.session,
                host=f"h{self.number}",
                address="",
                everstep_version="",
                torch_version="",
                journal=heir.replica.age,
            )
            end.send(join)
            admitted = await end.receive()
            if not isinstance(admitted, Admitted):
                raise WireError("it has no controller")
            if not heir.follow(admitted.epoch, end.voter):
                raise WireError("it is not followed")
            while True:
                message = await end.receive()
                if not isinstance(message, Ping):
                    try:
                        await heir.take(message, end.send)
                    except ValueError as error:
                        raise WireError(str(error)) from error
        finally:
            minding.cancel()
            end.abort()

    async def _mind(self, heir: Heir, end: End) -> None:
        while True:
            await asyncio.sleep(PING_S)
            end.send(Ping())
            if heir.may_succeed and heir.silent_s > 1.2 * heir.patience_s:
                end.abort()

    async def _elect(self, heir: Heir) -> None:
        epoch = await heir.wait_elected()
        roster, (earlier, size) = heir.roster, heir.replica.age
        self.fleet.elected(self, epoch)
        if self._end is not None:
            self._end.abort()
        heir.replica.close()
        self.lead(epoch=epoch, roster=roster, begins_at=size, earlier_epoch=earlier)
        self._tasks[0].cancel()
        await asyncio.sleep(max(0.0, LEASE_S - heir.patience_s + SLACK_S) / self.rate)
        self.fleet.check_lease(self, roster)

    # its door

    async def serve(self, end: End) -> None:
        try:
            first = await end.receive()
            if isinstance(first, AskVote | AskWho | Lead):
                if self.heir is None:
                    end.send(Vote(is_granted=False, epoch=self.copying.epoch, why=HAS_CONTROLLER))
                else:
                    await self.heir.answer(first, end)
            elif self.copying is not None and not self.has_ended:
                await self._welcome(first, end)
            else:
                end.send(Vote(is_granted=False, epoch=0, why="the controller is not here"))
        except (EOFError, WireError):
            pass
        finally:
            end.abort()

    async def _welcome(self, join: Join, end: End) -> None:
        host = self.fleet.known.setdefault((self.number, join.session), Host(join, int(join.session[1:])))
        if host.line is not None:
            host.line.abort()
        host.join, host.line, host.heard_at = join, end, self.clock()
        end.send(Admitted(run="r", number=1, num_hosts=1, spec=b"", port=1, epoch=self.copying.epoch))
        self.copying.joined(host)
        try:
            while True:
                message = await end.receive()
                host.heard_at = self.clock()
                if not isinstance(message, Ping) and not self.has_ended:
                    self.copying.hear(host, message)
        finally:
            if host.line is end:
                host.line = None


class Fleet:
    def __init__(self, folder: Path, rates: list[float], seed: int, monkeypatch) -> None:
        """`rates`: of the hosts' clocks; the first host has the controller."""
        self.loop, self.folder = asyncio.get_running_loop(), folder
        self.random = random.Random(seed)
        self.slow = 0.0  # share of messages that come late, as after a loss
        self.known: dict[tuple[int, str], Host] = {}
        self.acted = b""
        self.epochs: dict[int, Machine] = {}
        self._deaf: set[tuple[int, int]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: list[BaseException] = []
        self._patch(monkeypatch)
        self.machines = [Machine(self, number, rate) for number, rate in enumerate(rates)]
        self.machines[0].context.run(self.machines[0].lead)
        for machine in self.machines[1:]:
            machine.context.run(machine.join)

    def _patch(self, monkeypatch) -> None:
        clock = SimpleNamespace(monotonic=lambda: HERE.get().clock())

        async def connect(voter, proofs):
            if proofs is None:
                raise OSError("no key")
            return await self.connect(HERE.get(), self.of(voter.session))

        async def opened(heir, legacy):
            async def close():
                pass

            heir.legacy, heir.port = legacy, 1
            heir.door = SimpleNamespace(welcome=heir._turn_away, close=close)

        rooms = "everstep.launcher.heirs"
        for name in (f"{rooms}.heir", f"{rooms}.copying", "everstep.engines.hosts.host"):
            monkeypatch.setattr(f"{name}.time", clock)
        for name in ("heir", "copying"):
            monkeypatch.setattr(f"{rooms}.{name}.note_succession", lambda *given: None)
        monkeypatch.setattr(f"{rooms}.asking.connect", connect)
        monkeypatch.setattr(Heir, "_open", opened)

    async def close(self) -> None:
        """Raises what went wrong in any host."""
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for machine in self.machines:
            await machine.close()
        if self._failures:
            raise self._failures[0]

    def begin(self, work, context=None) -> "asyncio.Task[None]":
        task = self.loop.create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failures.append(error)

    def of(self, session: str) -> Machine:
        return next(each for each in self.machines if public(each.session) == session)

    def delay_s(self) -> float:
        is_slow = self.random.random() < self.slow
        return self.random.uniform(0.2, 1.5) if is_slow else self.random.uniform(0.0005, 0.01)

    def passes(self, one: Machine, other: Machine) -> bool:
        return (one.number, other.number) not in self._deaf

    def split(self, side: set[int], others: set[int] | None = None, *, one_way: bool = False) -> None:
        """Nothing gets from `side` to `others`, and nothing back, unless `one_way`. None: to all that are not of it."""
        for one in side:
            for other in ({each.number for each in self.machines} if others is None else others) - side:
                self._deaf |= {(one, other)} if one_way else {(one, other), (other, one)}

    def heal(self) -> None:
        self._deaf.clear()

    async def connect(self, one: Machine, other: Machine) -> End:
        """Both have proven who they are, where they know each other. Raises OSError."""
        await asyncio.sleep(self.delay_s())
        while not (self.passes(one, other) and self.passes(other, one)):
            await asyncio.sleep(0.05)
        keys = [each.keys if each.heir is None else each.heir.keys for each in (one, other)]
        is_known = all(mine.towards(theirs.own) is not None for mine, theirs in zip(keys, reversed(keys), strict=True))
        near = End(self, one, other, public(other.session) if is_known else "")
        far = End(self, other, one, public(one.session) if is_known else "")
        near.far, far.far = far, near
        other.start(other.serve(far))
        return near

    def act(self, machine: Machine, counted: bytes) -> None:
        shorter, longer = sorted((self.acted, counted), key=len)
        assert longer.startswith(shorter), f"h{machine.number} acts on a record that another controller does not have"
        self.acted = longer

    def elected(self, machine: Machine, epoch: int) -> None:
        assert epoch not in self.epochs, f"epoch {epoch} has two controllers"
        self.epochs[epoch] = machine

    def check_lease(self, machine: Machine, roster) -> None:
        """The successor counts the node of the controller's host as lost now: its ranks stand still by then."""
        for old in self.machines:
            if old is not machine and old.copying is not None and old.copying.epoch < machine.copying.epoch:
                silent_s = old.clock() - old.confirmed_at
                assert silent_s > LEASE_S + LOOK_S, f"ranks of h{old.number} run: heard {silent_s:.2f} s ago"

    @property
    def leaders(self) -> list[Machine]:
        """Those that act."""
        now = self.loop.time()
        return [each for each in self.machines if not each.has_ended and now - each.acted_at < 2.0]

    @property
    def may_elect(self) -> bool:
        """Enough of those that vote are there."""
        newest = max(
            (each.heir.roster for each in self.machines if each.heir and each.heir.roster), key=lambda r: r.age
        )
        living = {public(each.session) for each in self.machines if not each.has_ended}
        return sum(each.session in living for each in newest.voters) >= to_elect(len(newest.voters))
