"""A host that joined: starts and ends its node on command, shows its ranks' output, sends what they wrote.

It decides nothing about faults. When the first host cannot be reached, its node continues until its lease is over; when
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
from everstep.errors import UnreachableError, WireError
from everstep.launcher.arguments.hosts import Hosts
from everstep.launcher.heirs.finding import Search
from everstep.launcher.hosts.fleet import agent_arguments, end_signal
from everstep.launcher.hosts.local_run import LocalRun
from everstep.launcher.joining.about import About, End
from everstep.launcher.joining.sending import Sending
from everstep.launcher.output.terminal import Terminal
from everstep.launcher.reach.reaching import Connection, EarlierLife, FindToken, NotListeningError, RefusedError, reach
from everstep.launcher.succession.candidacy import Candidacy, cancel
from everstep.linux.files import write_whole
from everstep.model.names import own_machine_name
from everstep.version import __version__
from everstep.wire.credentials import CREDENTIALS_NAME
from everstep.wire.heirs import FromLeader
from everstep.wire.joining import (
    PING_S,
    Admitted,
    Ahead,
    Bye,
    EndNode,
    FromHead,
    Join,
    Leaving,
    NodeEnded,
    Over,
    Ping,
    StartNode,
    StopAsked,
)

LOOK_S = 0.1
"""Between two looks at what ranks have written."""

GONE_S = 5.0
"""How long connections to the endpoint may be refused: after that the run is not there any more."""

MAX_UNSENT_BYTES = 8 << 20
FLUSH_S = 5.0
SILENT_S = 10.0
"""A first host that says nothing for so long, although it pings, is not reached any more."""

log = logging.getLogger("everstep.launcher")


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
        search: Search,
        at_endpoint: socket.socket | None = None,
    ) -> None:
        """`show`: called once, when it is known what runs here; returns the terminal. `at_endpoint`: as in `join`."""
        self._hosts, self._about, self._find_token = hosts, about, find_token
        self._search = search
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
        self._untold: list[NodeEnded] = []  # ends that happened without a connection
        self._credentials: dict[str, bytes] = {}
        self._signal = 0
        self._given_up = ""  # why this host is to leave the run
        self._grace_s = 30.0
        self._terminal: Terminal | None = None
        self._address = ""
        self._candidacy = Candidacy(
            hosts,
            self._session,
            find_token,
            self._children,
            self._keeper,
            say=say,
            moved=self._on_moved,
            at_endpoint=at_endpoint,
        )

    async def run(self) -> End:
        """Until the run is over, or this host leaves it. Nothing of it runs here afterwards. Raises EverstepError when
        it never joined."""
        self._children.start_reaping(self._loop)
        for number in self._signals:
            self._loop.add_signal_handler(number, self._on_signal, number)
        talking = asyncio.create_task(self._talk())
        try:
            elected = self._candidacy.elected
            waited: list[asyncio.Future[Any]] = [talking, self._end, elected]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if elected.done() and not self._end.done():
                self._on_moved()  # a host that is off would let an orderly end of the connection wait for it
                await cancel(talking)
                return await self._succeed()
            if talking.done() and not self._end.done():
                talking.result()
            return await self._end
        finally:
            await self._candidacy.stop()
            await self._end_everything()
            await self._say_goodbye()
            await cancel(talking)
            await self._candidacy.close()

    async def _talk(self) -> None:
        """Connected for ever. Raises EverstepError when that is not possible."""
        earlier_life, connection = EarlierLife(self._say), None
        while True:
            connection = connection or await reach(self._hosts, self._find_token, self._say, self._search.connect)
            try:
                await self._converse(connection)
            except RefusedError as error:
                if self._local is not None:
                    self._finish(End(exit_code=error.exit_code, outcome="failed", why=str(error)))
                    return
                await earlier_life.wait(error)
            except (WireError, EOFError, OSError, TimeoutError) as error:
                log.info("the connection to the first host ended: %s", error or type(error).__name__)
                if self._local is None:
                    raise UnreachableError(f"the run at {self._hosts.endpoint} closed the connection") from error
            finally:
                self._connection = None
                await connection.close()
            if self._end.done():
                return
            if self._local is None:
                connection = None
            elif self._candidacy.is_possible:
                connection = await self._find_controller()
            else:
                self._say("the first host is not connected; its ranks and these go on as long as the network lets them")
                connection = await self._again(msgspec.structs.replace(self._hosts, reach_limit_s=GONE_S))

    async def _again(self, hosts: Hosts) -> Connection:
        """Raises UnreachableError when the run is not there any more."""
        began = time.monotonic()
        while True:
            try:
                return await reach(hosts, self._find_token, lambda _: None, self._search.connect)
            except RefusedError:
                raise
            except UnreachableError as error:
                # A machine that is up and has no run any more says so at once; one that is cut off may come back.
                if isinstance(error, NotListeningError) or time.monotonic() - began > hosts.join_limit_s:
                    why = f"nothing of the run is at {hosts.endpoint} any more; what ran on this host was ended"
                    self._finish(End(exit_code=UnreachableError.exit_code, outcome="failed", why=why))
                    raise

    async def _find_controller(self) -> Connection:
        """Raises UnreachableError, with which this host's part is over."""
        try:
            return await self._candidacy.find()
        except UnreachableError as error:
            self._finish(End(exit_code=UnreachableError.exit_code, outcome="failed", why=str(error)))
            raise

    def _on_moved(self) -> None:
        if self._connection is not None:
            self._connection.abort()

    async def _succeed(self) -> End:
        engine, self._engine = self._engine, None
        assert engine is not None
        assert self._local is not None
        assert self._terminal is not None
        end = await self._candidacy.succeed(
            self._local, self._address, engine, self._terminal, self._signals, self._origin
        )
        return End(exit_code=end.exit_code, outcome=end.outcome, why=end.why, had_controller=not end.is_deposed)

    async def _converse(self, connection: Connection) -> None:
        connection.send(self._join(connection))
        async with asyncio.timeout(SILENT_S):
            admitted = await connection.receive()
        if not isinstance(admitted, Admitted):
            raise WireError(f"{type(admitted).__name__} where Admitted is expected")
        self._candidacy.follow(admitted.epoch, connection.voter)
        self._candidacy.endpoints = admitted.endpoints
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
                    assert self._local is not None
                    await self._candidacy.take(message, connection, self._local)
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
            host=own_machine_name(socket.gethostname()),
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
            journal=self._candidacy.journal,
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
            f"host {admitted.number}: joined run {admitted.run} at {connection.at} "
            f"({admitted.num_hosts} nodes); files of this host: {local.path}"
        )
        self._terminal = self._show(local)

    def _move(self, admitted: Admitted, connection: Connection) -> None:
        """Send the agent here the controller's address, and which one to obey."""
        assert self._engine is not None
        self._address = connection.here
        url = _url(connection.there, admitted.port)
        self._engine.move(url, self._equip)
        self._candidacy.tell_agent(url)

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
            case EndNode(node=node, given_up=why):
                self._given_up = why or self._given_up
                self._engine.evict(node)
                self._leave_if_given_up()
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
        self._leave_if_given_up()

    def _leave_if_given_up(self) -> None:
        """The run does not want this machine any more, and nothing of it runs here."""
        if not self._given_up or self._end.done() or (self._engine is not None and self._engine.pids):
            return
        why = self._given_up
        self._say(f"the run gives this host up and continues without it: {why}")
        self._say("`everstep check` examines this machine; the same command joins the run again")
        if self._connection is not None:
            self._connection.send(Leaving(why=f"it was given up: {why}"))
        self._finish(End(exit_code=1, outcome="evicted", why=why, is_own=True))

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
        if not self._candidacy.has_succeeded:
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
            if self._candidacy.misses_controller:
                connection.abort()

    async def _ping(self, connection: Connection) -> None:
        while True:
            await asyncio.sleep(PING_S)
            found = (self._engine.find_late(node) for node in self._engine.pids) if self._engine is not None else ()
            connection.send(Ping(late=next((late for late in found if late is not None), None)))

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
