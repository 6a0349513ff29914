"""Nodes on this machine: each is one agent process. Used by `everstep run` when no other engine is asked for."""

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path

from everstep.engines import freezing
from everstep.engines.children import Child, Children, wait_ended
from everstep.engines.holders import Agents
from everstep.engines.lateness import find_late
from everstep.engines.memory_keeper import MemoryKeeper
from everstep.engines.network import Loopback, Network, NetworkError
from everstep.engines.protocol import Loss, NoNodeError, OnLoss
from everstep.errors import LeaseOverError
from everstep.linux.children import Ended
from everstep.model.facts import Held
from everstep.wire.joining import Late

log = logging.getLogger("everstep.launcher")

EARLY_END_S = 5.0
"""An agent that lived shorter ended early; the next one waits, or a broken one would be started in a busy loop."""

FLAPS, FLAP_S = 2, 0.4
"""A flapping link: down and up so often, each for so long. TCP survives it, and the node must not be declared lost."""

BELOW_S = 2.0
"""An agent that SIGKILL has not ended by then is stuck, or frees much memory: either way its ranks must not
continue."""

RECOVERY_S = 5.0
"""Delay of a standby for the next fault: its imports would take the CPUs that the ranks recover with."""

_BACK_OFF_S = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)


class LocalEngine:
    """An `Engine`. Lives in the launcher's event loop."""

    def __init__(
        self,
        *,
        children: Children,
        keeper: MemoryKeeper,
        run_dir: Path,
        url: str,
        nproc: int,
        grace_s: float,
        equip: Callable[[str, Path], None],
        network: Network | None = None,
        racks: Sequence[str] = (),
        streams: str = "",
        streams_fds: tuple[int, ...] = (),
        more: Sequence[str] = (),
        end_signal: int = signal.SIGTERM,
        num_holders: int = 0,
    ) -> None:
        """`equip(node, folder)` puts there the credentials of the node's agent; it may raise OSError. `racks`: of the
        nodes in the order in which they are given, over and over; none: agents report EVERSTEP_RACK. `streams`: agents'
        --streams, which names descriptors of `streams_fds`. `more`: arguments of all agents. `end_signal`: what ends an
        agent in order; another one where a scheduler sends SIGTERM to every process. `num_holders`: deaths of an agent
        that its twins outlive."""
        self._end_signal = end_signal
        self._children = children
        self._starting = Agents(children, num_holders)
        self._keeper = keeper
        self._run_dir = run_dir
        self._url = url
        self._nproc = nproc
        self._grace_s = grace_s
        self._equip = equip
        self._network = network or Loopback()
        self._racks = tuple(racks)
        self._streams, self._streams_fds = streams, streams_fds
        self._more = (*more, *(() if end_signal == signal.SIGTERM else ("--end-signal", str(int(end_signal)))))
        self._disturbed: dict[str, asyncio.TimerHandle] = {}  # node that is cut or frozen -> when it is not any more
        self._agents: dict[str, Child] = {}
        self._requests: set[str] = set()
        self._ready: deque[str] = deque()  # started, not asked for yet
        self._released: set[str] = set()
        self._vanished: set[str] = set()  # lost on request, with their memory
        self._lost: list[str] = []  # nodes whose kept memory has no new holder yet
        self._num_early_ends = 0
        self._next_number = self._first_number = _first_free_number(run_dir / "nodes")
        self._on_loss: OnLoss = lambda loss: None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_ending = self._spares = False

    def watch(self, on_loss: OnLoss) -> None:
        self._on_loss = on_loss

    def move(self, url: str, equip: Callable[[str, Path], None], first_number: int = 0) -> None:
        """From now on nodes are started for the controller there. Names below `first_number` are taken elsewhere."""
        self._url, self._equip = url, equip
        self._next_number = max(self._next_number, first_number)

    def acquire(self, request: str, *, is_urgent: bool = True) -> None:
        if request in self._requests or self._is_ending:
            return
        self._requests.add(request)
        if self._ready:
            self._ready.popleft()  # it joins, or has
            return
        node = self._next_name()
        delay_s = _BACK_OFF_S[min(self._num_early_ends, len(_BACK_OFF_S) - 1)]
        if not is_urgent:
            delay_s = max(delay_s, RECOVERY_S)
        if delay_s:
            self._later(self._start_later(node, request, delay_s))
        else:
            self._start(node, request)

    def prepare(self, number: int) -> None:
        """Start the agents that will be asked for first, so that they load while the controller does."""
        for _ in range(number):
            node = self._next_name()
            try:
                self._start(node, "")
            except NoNodeError as error:
                log.warning("%s; it will be asked for", error)
                return
            self._ready.append(node)

    def new_name(self) -> str:
        """The name of a node that is started elsewhere: its number is not given again. Raises NoNodeError."""
        node = self._next_name()
        try:
            (self._run_dir / "nodes" / node).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NoNodeError(f"{node} cannot have a directory: {error}") from error
        return node

    def start(self, node: str) -> None:
        """Start the node of that name, chosen by the caller. Raises NoNodeError."""
        self._start(node, "")

    def _next_name(self) -> str:
        node = f"n{self._next_number}"
        self._next_number += 1
        return node

    def release(self, node: str) -> None:
        agent = self._agents.get(node)
        if agent is not None and node not in self._released:
            self._released.add(node)
            self._later(self._end_agent(agent))

    def find_late(self, node: str) -> Late | None:
        """The node's agent, where it lives and is late."""
        agent = self._agents.get(node)
        if agent is None or agent.ended is not None:
            return None
        return find_late(agent.pid, self._keeper.beats.silent_s(node, time.monotonic()))

    def evict(
        self, node: str, why: str = "", *, is_silent: bool = False, is_drill: bool = False, may_spare: bool = False
    ) -> str:
        late = self.find_late(node) if may_spare else None
        if late is not None:
            return late.says
        agent = self._agents.get(node)
        if agent is not None and node not in self._released:
            self._starting.renounce(agent)
            agent.send(signal.SIGKILL)  # its end is reported as a loss, like any other
            self._later(self._end_below(agent))
        return ""

    def lose(self, node: str) -> None:
        agent = self._child(node)
        self._vanished.add(node)
        agent.send(signal.SIGKILL)

    def cut(self, node: str, seconds: float) -> None:
        self._child(node)
        self._cut_link(node)
        self._disturb(node, seconds, lambda: self._network.cut(node, is_cut=False))

    def flap(self, node: str) -> None:
        self._child(node)
        self._cut_link(node)
        self._later(self._bounce(node))

    async def _bounce(self, node: str) -> None:
        """From a link that is down."""
        for _ in range(FLAPS - 1):
            await asyncio.sleep(FLAP_S)
            self._unless_gone(node, lambda: self._network.cut(node, is_cut=False))
            await asyncio.sleep(FLAP_S)
            self._unless_gone(node, lambda: self._network.cut(node, is_cut=True))
        await asyncio.sleep(FLAP_S)
        self._unless_gone(node, lambda: self._network.cut(node, is_cut=False))

    def _cut_link(self, node: str) -> None:
        try:
            self._network.cut(node, is_cut=True)
        except NetworkError as error:
            raise NoNodeError(str(error)) from error

    def freeze(self, node: str, seconds: float) -> None:
        agent = self._child(node)
        log.info("%d processes of %s are stopped", freezing.freeze(agent.pid), node)
        self._disturb(node, seconds, lambda: freezing.thaw(agent.pid))

    def fence(self, node: str) -> None:
        agent = self._agents.get(node)
        if agent is not None:
            self._released.add(node)
            agent.send(signal.SIGKILL)  # the rest of it is ended in _after_end
            self._later(self._end_below(agent))

    async def end(self, grace_s: float, *, spares: bool = False) -> None:
        """All nodes: in order within `grace_s`, then by force. Nothing of them is left afterwards, but, if it `spares`
        it, what ranks that ended well left running."""
        self._is_ending, self._spares = True, spares
        agents = list(self._agents.values())
        for agent in agents:
            agent.send(self._end_signal)
            agent.send(signal.SIGCONT)
        if not await wait_ended(agents, grace_s):
            for agent in agents:
                agent.send(signal.SIGKILL)
            await wait_ended(agents, 5.0)
        await self._starting.end()
        if not spares and not await self._children.end_orphans():
            log.error("left behind: %s", "; ".join(self._children.left_behind.values()))
        if not spares:
            await self._children.wait_for_wardens()

    @property
    def pids(self) -> dict[str, int]:
        return {node: agent.pid for node, agent in self._agents.items()}

    def _child(self, node: str) -> Child:
        agent = self._agents.get(node)
        if agent is None or node in self._released:
            raise NoNodeError(f"there is no node {node}; there are: {', '.join(self._agents) or 'none'}")
        return agent

    def _disturb(self, node: str, seconds: float, end: Callable[[], None]) -> None:
        """Who cannot reach a node cannot have its memory either: what it keeps is gone if it is lost meanwhile."""
        self._vanished.add(node)
        loop = asyncio.get_running_loop()
        earlier = self._disturbed.get(node)
        if earlier is not None:
            earlier.cancel()
        self._disturbed[node] = loop.call_later(seconds, self._end_disturbance, node, end)

    def _end_disturbance(self, node: str, end: Callable[[], None]) -> None:
        self._disturbed.pop(node, None)
        self._vanished.discard(node)
        self._unless_gone(node, end)

    def _unless_gone(self, node: str, do: Callable[[], None]) -> None:
        agent = self._agents.get(node)
        if agent is None or agent.ended is not None:
            return
        try:
            do()
        except NetworkError as error:
            log.warning("%s", error)

    async def _start_later(self, node: str, request: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        if not self._is_ending:
            try:
                self._start(node, request)
            except NoNodeError as error:
                self._on_loss(Loss(node=node, at=time.time(), reason=str(error)))

    def _start(self, node: str, request: str) -> None:
        """Start a node. Raises NoNodeError; then the request is forgotten, so that a repeated one is tried anew."""
        folder = self._run_dir / "nodes" / node
        inherited = tuple(self._lost)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._equip(node, folder)
            plug = self._network.plug(node)
            with _closing(plug.namespace_fd), self._keeper.open_line(node, inherited) as line:
                argv = [sys.executable, "-P", "-m", "everstep.agent", "--run-dir", str(self._run_dir), "--node", node]
                argv += ["--parent", str(os.getpid()), "--controller", self._url, "--nproc", str(self._nproc)]
                argv += ["--address", plug.address, *self._rack(node), *self._more]
                fds = self._streams_fds
                if self._streams:
                    argv += ["--streams", self._streams]
                if plug.namespace_fd is not None:
                    argv += ["--namespace-fd", str(plug.namespace_fd)]
                    fds = (*fds, plug.namespace_fd)
                agent = self._starting.start(
                    node, argv, line.fileno(), on_end=self._on_end, log=folder / "agent.log", pass_fds=fds
                )
        except (OSError, NetworkError) as error:
            self._keeper.close_line(node)
            self._requests.discard(request)
            raise NoNodeError(f"{node} cannot be started: {error}") from error
        self._agents[node] = agent
        log.info("%s started as process %d", node, agent.pid)

    def _rack(self, node: str) -> list[str]:
        if not self._racks:
            return []
        return ["--rack", self._racks[(int(node[1:]) - self._first_number) % len(self._racks)]]

    def _on_end(self, agent: Child, ended: Ended) -> None:
        self._later(self._after_end(agent, ended))

    async def _after_end(self, agent: Child, ended: Ended) -> None:
        """End what the agent left first, so that the loss means that nothing of the node runs."""
        node = agent.name
        if self._is_ending or node in self._released or node in self._vanished:
            await self._starting.forsake(agent)
        else:
            await self._starting.keep(agent)
        if ended.code != 0 and not self._spares:  # else it has ended what was to be ended
            await self._children.end_orphans()
        self._keeper.close_line(node)
        self._agents.pop(node, None)
        self._unplug(node)
        lived_s = ended.at - agent.started_at
        self._num_early_ends = self._num_early_ends + 1 if lived_s < EARLY_END_S else 0
        if self._is_ending:
            return
        kept = self._pass_on_memory(node)
        if node in self._ready:
            self._ready.remove(node)  # the next request gets another one
        elif node not in self._released:
            reason = _why_lost(ended) or f"its agent ended ({ended}) after {lived_s:.1f} s; see nodes/{node}/agent.log"
            loss = Loss(node=node, at=ended.at, reason=reason, exit_code=ended.code, signal=ended.signal, kept=kept)
            self._on_loss(loss)

    def _unplug(self, node: str) -> None:
        disturbed = self._disturbed.pop(node, None)
        if disturbed is not None:
            disturbed.cancel()
        try:
            self._network.unplug(node)
        except NetworkError as error:
            log.warning("%s", error)

    def _pass_on_memory(self, lost: str) -> tuple[Held, ...]:
        """To every other agent of this machine: a standby may take the slot. To new ones when they start. A machine
        that is gone passes on nothing."""
        if lost in self._vanished:
            self._keeper.forget(lost)
            return ()
        held = self._keeper.held_of(lost)
        if held:
            self._lost.append(lost)
            for node in self._agents:
                self._keeper.offer(lost, node)
        return held

    async def _end_agent(self, agent: Child) -> None:
        agent.send(self._end_signal)
        if not await wait_ended([agent], self._grace_s):
            agent.send(signal.SIGKILL)

    async def _end_below(self, agent: Child) -> None:
        """Its ranks end with it; where it does not end (uninterruptible sleep), they are ended without it."""
        if not await wait_ended([agent], BELOW_S):
            log.error("%s does not end on SIGKILL; its processes are ended without it", agent.name)
            agent.kill_below()

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _why_lost(ended: Ended) -> str:
    """For an end that is not a fault of the agent's."""
    if ended.code == LeaseOverError.exit_code:
        return "it ended itself: no report of it had arrived for so long that another node may have its slot"
    return ""


@contextlib.contextmanager
def _closing(fd: int | None) -> Iterator[None]:
    try:
        yield
    finally:
        if fd is not None:
            os.close(fd)


def _first_free_number(folder: Path) -> int:
    """Node ids are unique for ever, also over attempts of the same run."""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return 0
    numbers = [int(match[1]) for name in names if (match := re.fullmatch(r"n(\d+)", name))]
    return max(numbers, default=-1) + 1
