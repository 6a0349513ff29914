"""The launcher while a run is on: carries out the controller's commands, reports what happens here, and ends it all.

It decides nothing about faults. The one thing it does by itself is to end every process: when the run is over, when the
user asks for it and the controller cannot, and when the controller cannot begin. Started by `launcher.run`.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING

import aiohttp
import msgspec

from everstep.agent.streams.streams import Origin
from everstep.engines.children import Children, wait_ended
from everstep.engines.holders import HOLDERS
from everstep.engines.local import LocalEngine
from everstep.engines.memory_keeper import MemoryKeeper
from everstep.engines.network import Network, is_of_its_own
from everstep.engines.protocol import Engine, Loss, NoNodeError
from everstep.errors import ConfigError, UnreachableError
from everstep.knowledge.drained import drained, withdrawn
from everstep.launcher import leftovers
from everstep.launcher.controller_keeper import Begin, ControllerKeeper
from everstep.launcher.output.terminal import Terminal
from everstep.launcher.rundir.rundir import Prepared
from everstep.launcher.stores.stores import Stores, StoresError
from everstep.model import actions as act
from everstep.model.events import (
    DrillFailed,
    NodeAlerted,
    NodeLost,
    NodeRefused,
    NodeSpared,
    StopRequested,
    StoreOpened,
)
from everstep.wire.greeting import RejectedError
from everstep.wire.link import Link

if TYPE_CHECKING:
    from everstep.engines.hosts.engine import HostsEngine
    from everstep.engines.slurm.engine import SlurmEngine
    from everstep.launcher.hosts.fleet import Fleet

log = logging.getLogger("everstep.launcher")

STOP_SLACK_S = 3.0
"""On top of the policy's grace, for the orderly way of a stop: through the controller and back."""

CONTROLLER_GRACE_S = 2.0

UNHEARD_S = 2.0
"""A controller that has not taken the request to stop by then is stuck: the nodes are ended without it."""

RELINK_S = 1.0
STORE_RETRY_S = 1.0

SUCCEEDED = "succeeded"
"""Finish's outcome when every rank ended well."""

AWAY_S = 20.0
"""How long the drills cut-node and freeze-node last by default."""


class End(msgspec.Struct, frozen=True, kw_only=True):
    """How the launcher ends."""

    exit_code: int
    outcome: str  # Finish's, or "stopped" | "failed" when the controller could not say
    why: str
    is_deposed: bool = False  # another host may have the run


class TakenOver(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a host brings along from before when it takes over the controller."""

    epoch: int
    children: Children
    keeper: MemoryKeeper
    local: LocalEngine
    first_number: int  # of nodes that were never named
    lost: tuple[str, ...]
    lost_after_s: float
    begin: Begin | None = None  # of a controller that waits


class Supervisor:
    def __init__(
        self,
        prepared: Prepared,
        *,
        listener: socket.socket,
        stores: Stores,
        network: Network,
        signals: tuple[int, ...],
        terminal: Terminal,
        origin: Origin,
        what_is_left: str = leftovers.LEAVE,
        fleet: "Fleet | None" = None,
        taken_over: TakenOver | None = None,
    ) -> None:
        """`taken_over`: what runs on this host already, which joined another one before. `listener`: for people and for
        this launcher; for nodes too, unless they have a network of their own. `fleet`: other hosts that give nodes."""
        self._fleet = fleet
        self._prepared = prepared
        self._policy = prepared.file.policy
        self._signals = signals
        self._terminal = terminal
        self._leftovers = what_is_left
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[End] = self._loop.create_future()
        self._at_once = asyncio.Event()
        self._signal: int | None = None
        self._is_jobs_signal = False  # it came by another host, and may come here as well
        self._end_signal: int = fleet.end_signal if fleet is not None else signal.SIGTERM
        self._taken_over = taken_over
        self._is_deposed = False
        self._children = taken_over.children if taken_over is not None else Children()
        self._keeper = taken_over.keeper if taken_over is not None else MemoryKeeper()
        self._network = network
        self._stores = stores
        self._opening: set[asyncio.Task[None]] = set()
        self._for_nodes = network.listen() if is_of_its_own(network) else listener
        nodes_port = self._for_nodes.getsockname()[1]
        is_encrypted = prepared.is_encrypted or self._for_nodes is not listener
        local = self._local_engine(origin, is_encrypted=is_encrypted) if taken_over is None else taken_over.local
        if taken_over is not None:
            equip = partial(prepared.keys.equip, is_encrypted=is_encrypted)
            local.move(self._nodes_url, equip, taken_over.first_number)
        self._engine: LocalEngine | HostsEngine | SlurmEngine = local
        if fleet is not None:
            self._engine = fleet.engine(
                local, self._children, nodes_port, self._on_drained, self._on_job_signal, self._keeper, self._on_deposed
            )
        name = f"launcher-{prepared.file.attempt}" + (f"-{taken_over.epoch}" if taken_over is not None else "")
        self._link = Link(
            url=f"ws://127.0.0.1:{listener.getsockname()[1]}/link",
            credentials=prepared.keys.of_launcher(name, is_encrypted=prepared.is_encrypted),
            on_command=lambda command: self._do(command.action),
        )
        self._controller_keeper = self._keeper_of_controller(listener)

    def _local_engine(self, origin: Origin, *, is_encrypted: bool) -> LocalEngine:
        """Starts nodes on this machine; `is_encrypted`: as nodes reach the controller."""
        prepared, fleet = self._prepared, self._fleet
        return LocalEngine(
            children=self._children,
            keeper=self._keeper,
            run_dir=prepared.path,
            url=self._nodes_url,
            nproc=prepared.file.spec.nproc_per_node,
            grace_s=self._policy.shutdown_s + STOP_SLACK_S,
            equip=partial(prepared.keys.equip, is_encrypted=is_encrypted),
            network=self._network,
            racks=prepared.racks,
            streams=origin.argument(),
            streams_fds=origin.fds,
            more=fleet.agent_arguments if fleet is not None else (),
            end_signal=self._end_signal,
            num_holders=HOLDERS if fleet is None and not is_of_its_own(self._network) else 0,
        )

    @property
    def _nodes_url(self) -> str:
        """Where nodes find the controller."""
        host, port = self._for_nodes.getsockname()[:2]
        return f"ws://{f'[{host}]' if ':' in host else host}:{port}/link"

    def _keeper_of_controller(self, listener: socket.socket) -> ControllerKeeper:
        is_encrypted = self._prepared.is_encrypted
        return ControllerKeeper(
            children=self._children,
            run_dir=self._prepared.path,
            listen_fds=() if is_encrypted else (listener.fileno(),),
            tls_fds=_encrypted(listener, self._for_nodes, is_encrypted=is_encrypted),
            copied_fd=self._fleet.copied_fd if self._fleet is not None else None,
            waiting=self._taken_over.begin if self._taken_over is not None else None,
            owner=self,
            end_signal=self._end_signal,
        )

    async def run(self, came_before: Callable[[], tuple[int, ...]] = tuple) -> End:
        """The whole life of a run on this machine. Nothing of it is left when this returns. `came_before`: signals that
        came before this handles them."""
        if self._taken_over is None:
            self._children.start_reaping(self._loop)
        for number in self._signals:
            self._loop.add_signal_handler(number, self._on_signal, number)
        for number in came_before():
            self._on_signal(number)
        engine: Engine = self._engine
        engine.watch(self._on_loss)
        link = asyncio.create_task(self._stay_linked())
        if self._prepared.found is not None:
            self._link.report(self._prepared.found)
        try:
            self._controller_keeper.start()
            if self._fleet is not None:
                await self._fleet.open()
            self._stores.prepare(self._children, self._on_no_store)
            if self._taken_over is not None:
                self._go_on(self._taken_over)
            elif self._prepared.file.attempt == 1:
                self._engine.prepare(self._prepared.file.spec.num_slots)
            return await self._end
        finally:
            await self._end_everything()
            link.cancel()
            await asyncio.gather(link, return_exceptions=True)

    def _go_on(self, taken_over: TakenOver) -> None:
        """The nodes of the host that had the controller count as lost as soon as their ranks must stand still."""
        self._keeper.tell({"controller": {"epoch": taken_over.epoch, "url": self._nodes_url}})
        for node in taken_over.lost:
            reason = f"its host, which had the controller, was not heard of; {socket.gethostname()} has it now"
            loss = Loss(node=node, at=time.time(), reason=reason)
            self._loop.call_later(taken_over.lost_after_s, self._on_loss, loss)

    def _on_deposed(self, why: str) -> None:
        self._is_deposed = True
        why = f"{why}; what ran here was ended"
        self._finish(End(exit_code=UnreachableError.exit_code, outcome="failed", why=why, is_deposed=True))

    def _do(self, action: act.Action) -> None:
        match action:
            case act.OpenStore(generation=generation):
                self._start_to_open(generation)
            case act.AcquireNode(request=request, is_urgent=is_urgent):
                try:
                    self._engine.acquire(request, is_urgent=is_urgent)
                except NoNodeError as error:
                    self._link.report(NodeRefused(at=time.time(), why=str(error)))
            case act.ReleaseNode(node=node):
                self._engine.fence(node)  # it is out: nothing of it may continue, not even to clean up
            case act.EvictNode():
                self._evict(action)
            case act.Inject():
                self._inject(action)
            case act.Finish():
                self._finish(End(exit_code=action.exit_code, outcome=action.outcome, why=action.why))
            case _:
                log.warning("%s is not a command for a launcher", type(action).__name__)

    def _evict(self, action: act.EvictNode) -> None:
        why_spared = self._engine.evict(
            action.node,
            action.why,
            is_silent=action.is_silent,
            is_drill=action.is_drill,
            may_spare=action.may_spare,
        )
        if why_spared:
            self._link.report(NodeSpared(at=time.time(), node=action.node, why=why_spared))

    def _inject(self, action: act.Inject) -> None:
        """A drill of a whole machine: the only ones that are sent here."""
        try:
            node, seconds = action.node or "", float(action.options.get("seconds", AWAY_S))
            match action.kind:
                case "lose-node":
                    self._engine.lose(node)
                case "cut-node":
                    self._engine.cut(node, seconds)
                case "flap-link":
                    self._engine.flap(node)
                case "freeze-node":
                    self._engine.freeze(node, seconds)
                case _:
                    raise NoNodeError(f"drill {action.kind!r} does not concern the launcher")
        except NoNodeError as error:
            self._link.report(DrillFailed(at=time.time(), drill=action.drill, why=str(error)))

    def _start_to_open(self, generation: int) -> None:
        task = self._loop.create_task(self._open_store(generation))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open_store(self, generation: int) -> None:
        try:
            host, port = await self._stores.open(generation)
        except OSError as error:
            self._on_no_store(generation, error)
            return
        self._link.report(StoreOpened(at=time.time(), generation=generation, host=host, port=port))

    def _on_no_store(self, generation: int, error: Exception) -> None:
        if isinstance(error, ImportError):
            why = f"torch cannot be imported: {error}"
            self._finish(End(exit_code=ConfigError.exit_code, outcome="failed", why=why))
            return
        if isinstance(error, StoresError):
            self._finish(End(exit_code=error.exit_code, outcome="failed", why=f"no store can be opened: {error}"))
            return
        self._terminal.say(f"generation {generation} has no store: {error}; opening another")
        self._loop.call_later(STORE_RETRY_S, self._start_to_open, generation)

    def _on_loss(self, loss: Loss) -> None:
        self._link.report(NodeLost(**msgspec.structs.asdict(loss)))

    def _on_drained(self, node: str, reason: str | None) -> None:
        """An administrator takes the node away, or (None) does not any more: for the run that is a machine to leave
        when it can."""
        at = time.time()
        if reason is None:
            told = withdrawn(at, "Slurm may use this node again", "slurm")
        else:
            told = drained(at, f"Slurm drains this node: {reason or 'no reason given'}", "slurm")
        self._link.report(NodeAlerted(at=at, node=node, alerts=(told,)))

    def _on_job_signal(self, number: int, why: str) -> None:
        """The scheduler's, for the whole job, as another host says."""
        if self._signal is None and number in self._signals:
            log.info("%s", why)
            self._on_signal(number)
            self._is_jobs_signal = True

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._is_jobs_signal and number == self._signal:
            self._is_jobs_signal = False  # the same one, which other hosts got sooner
            return
        if self._signal is not None:
            self._terminal.say(f"{name} again: ending every process at once")
            self._at_once.set()
            self._finish(self._stopped(f"{name}, twice"))
            return
        self._signal = number
        self._terminal.say(f"{name}: ending the run (once more to end it at once)")
        self._children.wake_all()  # stopped processes hear nothing else
        self._link.report(StopRequested(at=time.time(), why=name, signal=number))
        self._loop.call_later(UNHEARD_S, self._unless_heard, self._stopped(f"{name}; the controller did not answer"))
        has_disk = bool(self._prepared.file.spec.checkpoint_dir)
        limit_s = self._policy.shutdown_s + STOP_SLACK_S + (self._policy.notice_s if has_disk else 0.0)
        self._loop.call_later(limit_s, self._finish, self._stopped(f"{name}; not over after {limit_s:g} s"))

    def _unless_heard(self, end: End) -> None:
        if self._link.num_unacknowledged and not self._end.done():
            self._terminal.say("the controller does not answer: ending the nodes without it")
            self._finish(end)

    def _stopped(self, why: str) -> End:
        return End(exit_code=128 + (self._signal or signal.SIGTERM), outcome="stopped", why=f"stopped by {why}")

    async def _stay_linked(self) -> None:
        """A fault of ours in the link must not be the end of recoveries: say so, and link again."""
        while True:
            try:
                await self._link.run()
            except RejectedError as error:
                why = f"the controller refuses this launcher: {error}"
                self._finish(End(exit_code=error.exit_code, outcome="failed", why=why))
                return
            except Exception as error:
                if isinstance(error, TypeError | AttributeError) and not self._link.was_welcome:
                    log.exception("the link to the controller cannot be made")
                    self._finish(End(exit_code=1, outcome="failed", why=_why_never(error)))
                    return
                log.exception("the link to the controller failed")
                self._terminal.say(f"the link to the controller failed ({error!r}); linking again, training continues")
                await asyncio.sleep(RELINK_S)

    @property
    def controller_has_worked(self) -> bool:
        return self._link.was_welcome

    def say(self, text: str) -> None:
        self._terminal.say(text)

    def on_hopeless(self, exit_code: int) -> None:
        why = f"the controller cannot begin; see {self._prepared.path / 'controller.log'}"
        self._finish(End(exit_code=exit_code, outcome="failed", why=why))

    def _finish(self, end: End) -> None:
        """The first reason counts."""
        if not self._end.done():
            self._end.set_result(end)

    async def _end_everything(self) -> None:
        """End agents first, so that they end their workers in order; the controller last, it may still receive
        reports."""
        if self._at_once.is_set():
            self._kill_all()
        is_success = self._end.done() and not self._end.cancelled() and self._end.result().outcome == SUCCEEDED
        grace_s = self._policy.shutdown_s + STOP_SLACK_S
        if self._fleet is not None and self._end.done() and not self._end.cancelled():
            end = self._end.result()
            tell = self._fleet.forsake if self._is_deposed else self._fleet.announce
            tell(end.exit_code, end.outcome, end.why)
        await self._unless_at_once(self._engine.end(grace_s, spares=is_success))
        controller = self._controller_keeper.stop()
        if controller is not None:
            controller.send(self._end_signal)
            if not await wait_ended([controller], 0.0 if self._at_once.is_set() else CONTROLLER_GRACE_S):
                controller.send(signal.SIGKILL)
                await wait_ended([controller], CONTROLLER_GRACE_S)
        if is_success:
            await leftovers.look_after(self._children, self._leftovers, self._terminal.say, self._at_once)
        else:
            await self._children.end_orphans()
        for task in self._opening:
            task.cancel()
        await self._stores.end()
        self._children.note_unended()
        for held in self._children.left_behind.values():
            self._terminal.say(f"left behind: SIGKILL does not end {held}; it ends when the kernel lets it go")
        if self._fleet is not None:
            await self._fleet.close()
        self._stores.close()
        self._keeper.close()
        self._for_nodes.close()
        self._network.close()

    def _kill_all(self) -> None:
        self._controller_keeper.stop()  # or it would start another controller
        self._children.kill_all()

    async def _unless_at_once(self, orderly: Coroutine[None, None, None]) -> None:
        """Another signal while ending in order: by force, then."""
        ending = asyncio.create_task(orderly)
        hurry = asyncio.create_task(self._at_once.wait())
        await asyncio.wait([ending, hurry], return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            self._kill_all()
        hurry.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await hurry
        await ending


def _encrypted(listener: socket.socket, for_nodes: socket.socket, *, is_encrypted: bool) -> tuple[int, ...]:
    """Descriptors of the sockets with TLS. In order: the controller announces the first one, which must be the one that
    the verbs of this machine can reach."""
    sockets = [*([listener] if is_encrypted else []), *([for_nodes] if for_nodes is not listener else [])]
    return tuple(sock.fileno() for sock in sockets)


def _why_never(error: Exception) -> str:
    """Why a link was never made: a library with other parameters fails each time, so nothing is retried."""
    return (
        f"no link to the controller can be made: {type(error).__name__}: {error}. aiohttp {aiohttp.__version__} is "
        "installed; Everstep needs 3.12 or later: pip install 'aiohttp>=3.12'"
    )
