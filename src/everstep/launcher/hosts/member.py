"""A host that joined: starts and ends the node that it is told to, shows its ranks' output, sends what they wrote.

It decides nothing about faults. When the first host cannot be reached, its node goes on until its lease is over; when
the first host's launcher is gone, the run is, and the node ends.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from everstep.agent.processes import ahead
from everstep.agent.streams.streams import Origin
from everstep.engines.children import Children
from everstep.engines.local import LocalEngine
from everstep.engines.memory_keeper import MemoryKeeper
from everstep.engines.network import Address
from everstep.engines.protocol import Loss, NoNodeError
from everstep.errors import ConfigError, EverstepError, UnreachableError, WireError
from everstep.journal.runs import RunDir, make_known
from everstep.launcher.arguments.hosts import Hosts
from everstep.launcher.heirs.asking import connect
from everstep.launcher.heirs.heir import Heir
from everstep.launcher.heirs.taking_over import Here, take_over
from everstep.launcher.heirs.waiting import AFTER_S, Waiting
from everstep.launcher.hosts.fleet import agent_arguments, end_signal
from everstep.launcher.hosts.local_run import LocalRun
from everstep.launcher.hosts.reaching import (
    SAID_AFTER_S,
    Connection,
    FindToken,
    NotListeningError,
    RefusedError,
    reach,
)
from everstep.launcher.hosts.sending import Sending
from everstep.launcher.output.terminal import Terminal
from everstep.linux.files import write_whole
from everstep.version import __version__
from everstep.wire.credentials import CREDENTIALS_NAME
from everstep.wire.heirs import FromLeader, Voter
from everstep.wire.joining import (
    PING_S,
    Admitted,
    Ahead,
    Bye,
    EndNode,
    FromHead,
    Join,
    JoinToken,
    Leaving,
    NodeEnded,
    Over,
    Ping,
    StartNode,
    StopAsked,
)

FIND_S = 1.0
"""For one host to say whether it has the controller."""

LOOK_S = 0.1
"""Between two looks at what ranks have written."""

GONE_S = 5.0
"""Nobody listens at the endpoint for so long, and its machine says so: the run is not there any more."""

MAX_UNSENT_BYTES = 8 << 20
FLUSH_S = 5.0
SILENT_S = 10.0
"""A first host that says nothing for so long, although it pings, is not reached any more."""

log = logging.getLogger("everstep.launcher")


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What this host says of itself when it joins."""

    num_hosts: int | None = None
    nproc: int | None = None
    program: str = ""
    args: tuple[str, ...] = ()
    torch_version: str = ""
    cwd: str = ""
    rack: str = ""


class End(msgspec.Struct, frozen=True, kw_only=True):
    exit_code: int
    outcome: str
    why: str
    is_own: bool = False  # this host's end, and not the run's


class Member:
    """One life of a host in a run. `say`: a line for the person at this host's terminal."""

    def __init__(
        self,
        hosts: Hosts,
        about: About,
        find_token: FindToken,
        *,
        signals: tuple[int, ...],
        say: Callable[[str], None],
        show: Callable[[LocalRun], Terminal],
        origin: Origin,
    ) -> None:
        """`show`: called once, when it is known what runs here; returns what shows it."""
        self._hosts, self._about, self._find_token = hosts, about, find_token
        self._signals = signals
        self._say = say
        self._show = show
        self._origin = origin
        self._session = secrets.token_hex(16)
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[End] = self._loop.create_future()
        self._children = Children()
        self._keeper = MemoryKeeper()
        self._engine: LocalEngine | None = None
        self._local: LocalRun | None = None
        self._sending: Sending | None = None
        self._connection: Connection | None = None
        self._untold: list[NodeEnded] = []  # while nobody was connected
        self._credentials: dict[str, bytes] = {}
        self._signal = 0
        self._grace_s = 30.0
        self._terminal: Terminal | None = None
        self._heir: Heir | None = None
        self._address = ""
        self._leader: Voter | None = None  # that is known to go on with the controller
        self._has_leader = asyncio.Event()
        self._elected: asyncio.Future[int] = self._loop.create_future()
        self._electing: asyncio.Task[None] | None = None
        self._has_succeeded = False
        self._epoch = 1
        self._waiting: Waiting | None = None
        self._is_warming = False

    async def run(self) -> End:
        """Until the run is over, or this host leaves it. Nothing of it runs here afterwards. Raises EverstepError when
        it never joined."""
        self._children.start_reaping(self._loop)
        for number in self._signals:
            self._loop.add_signal_handler(number, self._on_signal, number)
        talking = asyncio.create_task(self._talk())
        try:
            waited: list[asyncio.Future[Any]] = [talking, self._end, self._elected]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if self._elected.done() and not self._end.done():
                await _cancel(talking)
                return await self._succeed(self._elected.result())
            if talking.done() and not self._end.done():
                talking.result()
            return await self._end
        finally:
            if self._electing is not None:
                await _cancel(self._electing)
            if self._waiting is not None and not self._has_succeeded:
                self._waiting.close()
            await self._end_everything()
            await self._say_goodbye()
            await _cancel(talking)
            if self._heir is not None and not self._has_succeeded:
                await self._heir.close()

    async def _talk(self) -> None:
        """Connected for ever. Raises EverstepError when that is not possible."""
        connection = await reach(self._hosts, self._find_token, self._say)
        while True:
            try:
                await self._converse(connection)
            except RefusedError as error:
                if self._local is None:
                    raise
                self._finish(End(exit_code=error.exit_code, outcome="failed", why=str(error)))
                return
            except (WireError, EOFError, OSError, TimeoutError) as error:
                log.info("the connection to the first host ended: %s", error or type(error).__name__)
                if self._local is None:
                    raise UnreachableError(f"the run at {self._hosts.endpoint} closed the connection") from error
            finally:
                self._connection = None
                await connection.close()
            if self._end.done():
                return
            if self._heir is not None and self._heir.may_succeed:
                connection = await self._find_controller(self._heir)
                continue
            self._say("the first host is not connected; its ranks and these go on as long as the network lets them")
            again = msgspec.structs.replace(self._hosts, reach_limit_s=GONE_S)
            connection = await self._again(again)

    async def _again(self, hosts: Hosts) -> Connection:
        """Raises UnreachableError when the run is not there any more."""
        began = time.monotonic()
        while True:
            try:
                return await reach(hosts, self._find_token, lambda _: None)
            except RefusedError:
                raise
            except UnreachableError as error:
                # A machine that is up and has no run any more says so at once; one that is cut off may come back.
                if isinstance(error, NotListeningError) or time.monotonic() - began > hosts.join_limit_s:
                    why = f"nothing of the run is at {hosts.endpoint} any more; what ran on this host was ended"
                    self._finish(End(exit_code=UnreachableError.exit_code, outcome="failed", why=why))
                    raise

    async def _find_controller(self, heir: Heir) -> Connection:
        """Wherever it is by now. Raises UnreachableError when nobody has it for too long."""
        began, is_said = time.monotonic(), False
        while True:
            self._has_leader.clear()
            for voter in self._voters(heir):
                finding = asyncio.create_task(connect(voter, heir.keys.towards(voter.session)))
                told = asyncio.create_task(self._has_leader.wait())
                await asyncio.wait([finding, told], timeout=FIND_S, return_when=asyncio.FIRST_COMPLETED)
                told.cancel()
                if not finding.done():
                    await _cancel(finding)
                elif finding.exception() is None:
                    return finding.result()
                if self._has_leader.is_set():
                    break
            waited_s = time.monotonic() - began
            if waited_s > self._hosts.join_limit_s:
                why = f"no host of the run had the controller for {waited_s:.0f} s; what ran on this host was ended"
                self._finish(End(exit_code=UnreachableError.exit_code, outcome="failed", why=why))
                raise UnreachableError(why)
            if not is_said and waited_s > SAID_AFTER_S:
                is_said = True
                self._say("no host has the controller now; a successor needs more than half of those that vote")
            await asyncio.sleep(0.05)

    def _voters(self, heir: Heir) -> list[Voter]:
        voters = heir.roster.voters if heir.roster is not None else ()
        known = [self._leader] if self._leader is not None else []
        return [each for each in (*known, *voters) if each.session != heir.keys.own]

    def _on_led(self, leader: Voter) -> None:
        """Another host goes on with the controller."""
        assert self._heir is not None
        self._leader = leader
        self._say(f"{leader.host} ({leader.address}) continues with the controller")
        self._keeper.tell({"controller": {"epoch": self._heir.voting.promised}})
        self._has_leader.set()
        if self._connection is not None:
            self._connection.abort()

    async def _elect(self, heir: Heir) -> None:
        try:
            self._elected.set_result(await heir.wait_elected())
        except Exception:
            log.exception("this host does not vote any more")

    async def _take_legacy(self, message: FromLeader, connection: Connection) -> None:
        """Our own failure here costs the successor, not the run."""
        assert self._local is not None
        try:
            if self._heir is None:
                self._heir = Heir(
                    self._local.path,
                    session=self._session,
                    address=connection.here,
                    token=self._find_token(),
                    silent_s=self._local.file.policy.node_silent_s,
                    on_led=self._on_led,
                )
                self._heir.begin(self._epoch)
                make_known(self._local.file.run, RunDir(self._local.path))
                self._electing = asyncio.create_task(self._elect(self._heir))
                self._keeper.tell({"controller": {"epoch": self._epoch}})
            await self._heir.take(message, connection.send)
            if self._heir.is_next and not self._is_warming:
                self._is_warming = True
                self._loop.call_later(AFTER_S, self._warm)
        except (OSError, ValueError, EverstepError) as error:
            log.warning("the journal is not kept here: %s", error)

    def _warm(self) -> None:
        """A controller that is there when it is wanted. Without it, it is started then."""
        if self._end.done() or self._elected.done() or self._local is None:
            return
        try:
            self._waiting = Waiting(self._children, self._local.path, self._address, end_signal(self._hosts))
        except (OSError, EverstepError) as error:
            log.warning("no controller waits here: %s", error)

    async def _succeed(self, epoch: int) -> End:
        heir, engine, token = self._heir, self._engine, self._find_token()
        assert heir is not None
        assert engine is not None
        assert self._local is not None
        assert self._terminal is not None
        if not isinstance(token, JoinToken):
            raise ConfigError("only a host with the join token itself can go on with the controller")
        self._say(f"the controller's host is not heard of: this host continues with it (epoch {epoch})")
        self._has_succeeded, self._engine = True, None
        here = Here(
            hosts=self._hosts,
            local=self._local,
            heir=heir,
            address=self._address,
            token=token,
            children=self._children,
            keeper=self._keeper,
            engine=engine,
            terminal=self._terminal,
            signals=self._signals,
            origin=self._origin,
            waiting=self._waiting,
        )
        end = await take_over(here, epoch)
        return End(exit_code=end.exit_code, outcome=end.outcome, why=end.why)

    async def _converse(self, connection: Connection) -> None:
        connection.send(self._join(connection))
        async with asyncio.timeout(SILENT_S):
            admitted = await connection.receive()
        if not isinstance(admitted, Admitted):
            raise WireError(f"{type(admitted).__name__} where Admitted is expected")
        if self._heir is not None and not self._heir.follow(admitted.epoch, connection.voter):
            raise WireError(f"it has the controller of epoch {admitted.epoch}, as it says, and is not followed")
        self._epoch = admitted.epoch
        if self._local is None:
            self._begin(admitted, connection)
        elif self._local.spec_bytes != admitted.spec:
            why = "the run was started again: start this host again as well"
            self._finish(End(exit_code=UnreachableError.exit_code, outcome="failed", why=why))
            return
        assert self._sending is not None
        self._sending.start_over(admitted.has)
        self._connection = connection
        self._move(admitted, connection)
        for ended in self._untold:
            connection.send(ended)
        self._untold.clear()
        works = (self._ping(connection), self._send_files(connection), self._mind_head(connection))
        beside = [asyncio.create_task(work) for work in works]
        try:
            while True:
                async with asyncio.timeout(SILENT_S):
                    message = await connection.receive()
                if isinstance(message, FromLeader):
                    await self._take_legacy(message, connection)
                elif not self._end.done():
                    self._do(message)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    def _join(self, connection: Connection) -> Join:
        about = self._about
        return Join(
            session=self._session,
            host=socket.gethostname(),
            address=connection.here,
            everstep_version=__version__,
            torch_version=about.torch_version,
            node_rank=self._hosts.node_rank,
            num_hosts=about.num_hosts,
            nproc=about.nproc,
            program=about.program,
            args=about.args,
            nodes=tuple(self._engine.pids) if self._engine is not None else (),
            scheduler_node=os.environ.get("SLURMD_NODENAME", ""),
            scheduler_job=os.environ.get("SLURM_JOB_ID", ""),
            journal=self._heir.replica.age if self._heir is not None else (0, 0),
        )

    def _begin(self, admitted: Admitted, connection: Connection) -> None:
        """Raises EverstepError."""
        local = self._local = LocalRun.make(admitted, self._hosts.endpoint)
        policy, spec = local.file.policy, local.file.spec
        self._grace_s = policy.shutdown_s + 3.0
        self._sending = Sending(local.path)
        more = [*agent_arguments(connection.here, self._hosts.node_rank), "--cwd", self._about.cwd or spec.cwd]
        self._engine = LocalEngine(
            children=self._children,
            keeper=self._keeper,
            run_dir=local.path,
            url=_url(connection.there, admitted.port),
            nproc=spec.nproc_per_node,
            grace_s=self._grace_s,
            equip=self._equip,
            network=Address(connection.here),
            racks=(self._about.rack,) if self._about.rack else (),
            end_signal=end_signal(self._hosts),
            streams=self._origin.argument(),
            streams_fds=self._origin.fds,
            more=more,
        )
        self._engine.watch(self._on_loss)
        if self._about.args and self._about.args != spec.args:
            self._say(f"the program's arguments are those of the first host: {' '.join(spec.args) or '(none)'}")
        self._say(
            f"host {admitted.number}: joined run {admitted.run} at {self._hosts.endpoint} "
            f"({admitted.num_hosts} nodes); files of this host: {local.path}"
        )
        self._terminal = self._show(local)

    def _move(self, admitted: Admitted, connection: Connection) -> None:
        """Tell the agent here where the controller is, and whose orders it takes."""
        assert self._engine is not None
        self._address = connection.here
        url = _url(connection.there, admitted.port)
        self._engine.move(url, self._equip)
        if admitted.epoch > 1 or self._heir is not None:
            self._keeper.tell({"controller": {"epoch": admitted.epoch, "url": url}})

    def _equip(self, node: str, folder: Path) -> None:
        write_whole(folder / CREDENTIALS_NAME, self._credentials[node], mode=0o600)

    def _do(self, message: FromHead) -> None:
        assert self._engine is not None
        match message:
            case StartNode(node=node, credentials=credentials):
                self._credentials = {node: credentials}
                try:
                    self._engine.start(node)
                    self._say(f"node {node} starts here")
                except NoNodeError as error:
                    self._tell(NodeEnded(node=node, at=time.time(), reason=str(error)))
            case EndNode(node=node, how="freeze", seconds=seconds):
                with contextlib.suppress(NoNodeError):
                    self._engine.freeze(node, seconds)
            case EndNode(node=node, how="lose"):
                with contextlib.suppress(NoNodeError):
                    self._engine.lose(node)
            case EndNode(node=node):
                self._engine.evict(node)
            case Ahead(data=data) if self._local is not None:
                with contextlib.suppress(OSError):
                    write_whole(ahead.path_in(self._local.path), data, mode=0o600)
            case Over(exit_code=exit_code, outcome=outcome, why=why):
                self._finish(End(exit_code=exit_code, outcome=outcome, why=why))
            case _:
                pass

    def _on_loss(self, loss: Loss) -> None:
        self._tell(
            NodeEnded(node=loss.node, at=loss.at, reason=loss.reason, exit_code=loss.exit_code, signal=loss.signal)
        )

    def _tell(self, ended: NodeEnded) -> None:
        if self._connection is not None:
            self._connection.send(ended)
        else:
            self._untold.append(ended)

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._signal:
            self._children.kill_all()
            return
        self._signal = number
        self._children.wake_all()
        if self._hosts.slurm is not None and self._connection is not None:
            self._pass_on(number, name)
            return
        self._leave(number, name)

    def _pass_on(self, number: int, name: str) -> None:
        """Slurm ends the whole job. The first host decides what is done with the time that is left, and says when."""
        self._say(f"{name}: Slurm ends the job; the last step is saved first, where there is a place for it")
        assert self._connection is not None
        self._connection.send(StopAsked(why=f"{name} from Slurm", signal=number))
        notice_s = self._local.file.policy.notice_s if self._local is not None else 0.0
        self._loop.call_later(notice_s + self._grace_s, self._leave, number, name)

    def _leave(self, number: int, name: str) -> None:
        if self._end.done():
            return
        self._say(f"{name}: this host leaves the run")
        if self._connection is not None:
            self._connection.send(Leaving(why=f"{name} on {socket.gethostname()}"))
        self._finish(End(exit_code=128 + number, outcome="stopped", why=f"stopped by {name}", is_own=True))

    def _finish(self, end: End) -> None:
        """The first reason counts."""
        if not self._end.done():
            self._end.set_result(end)

    async def _end_everything(self) -> None:
        if self._engine is not None:
            engine, self._engine = self._engine, None
            is_success = self._end.done() and self._end.result().outcome == "succeeded"
            await engine.end(self._grace_s, spares=is_success)
            if not is_success:
                await self._children.end_orphans()
        if not self._has_succeeded:
            self._keeper.close()

    async def _say_goodbye(self) -> None:
        """The last of what ranks wrote, and that this is all."""
        connection = self._connection
        if connection is None:
            return
        self._send(connection)
        connection.send(Bye())
        ends_at = time.monotonic() + FLUSH_S
        while connection.num_unsent and time.monotonic() < ends_at and self._connection is connection:
            await asyncio.sleep(0.01)

    async def _mind_head(self, connection: Connection) -> None:
        """A first host that may be gone is looked for elsewhere as well."""
        while True:
            await asyncio.sleep(LOOK_S)
            heir = self._heir
            if heir is not None and heir.may_succeed and heir.silent_s > 1.2 * heir.patience_s:
                connection.abort()

    async def _ping(self, connection: Connection) -> None:
        while True:
            await asyncio.sleep(PING_S)
            connection.send(Ping())

    async def _send_files(self, connection: Connection) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._send(connection)

    def _send(self, connection: Connection) -> None:
        if self._sending is None or connection.num_unsent > MAX_UNSENT_BYTES:
            return
        try:
            for piece in self._sending.pieces():
                connection.send(piece)
        except Exception:
            log.exception("what ranks wrote is not sent")  # it stays here; training goes on


def _url(there: str, port: int) -> str:
    return f"ws://{f'[{there}]' if ':' in there else there}:{port}/link"


async def _cancel(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
