"""Nodes of a Slurm job: given by the hosts that joined; what happens to them is reported to Slurm. An `Engine`.

Everstep finds faults; it reports to Slurm and never waits for it. A node that is evicted is set to drain, or down when
nothing was heard of it; a node that an administrator drains is replaced by the run. For a lost node without a spare a
job of one node is requested. What Slurm does not answer is retried and decides nothing meanwhile.
"""

import asyncio
import contextlib
import enum
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from everstep.engines.hosts.engine import HostsEngine
from everstep.engines.hosts.host import Host
from everstep.engines.protocol import OnLoss
from everstep.engines.slurm import batch
from everstep.engines.slurm.commands import NodeState, Slurm, SlurmError, is_of
from everstep.linux.files import write_whole
from everstep.wire.joining import JoinToken

LOOK_S = 2.0
"""Interval between two looks at what to report to Slurm, and whether a slot waits: Slurm is not asked for that."""

STATES_S = 8.0
"""Interval between two queries for the states of the run's nodes: a slurmctld has many clients."""

PILOT_AFTER_S = 2.0
"""So long an empty slot waits for a host that is coming anyway, before a node more is asked for."""

PILOT_AGAIN_S = 30.0
SILENT_S = 1.0
"""Two signs of life of an evicted node's host that did not come: it is down, and not only to be drained."""

ANSWER_S = 2.0
"""For a machine to refuse a connection."""

END_S = 15.0
_PILOT_FILES = ("pilot-token", "pilot.sh")
"""Limit for reports to Slurm when the run is over: it may not answer at all."""

_ALIVE = ("RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING")

MARK = "everstep"
"""How our reasons in `sinfo` begin; every other one is an administrator's, or another program's."""

log = logging.getLogger("everstep.launcher")


class _Mark(msgspec.Struct, frozen=True):
    """What to report to Slurm about a node. `job`: the job that the node is reported to belong to."""

    state: str
    reason: str
    job: str


class _Answer(enum.Enum):
    """The answer of a machine's kernel; a frozen one accepts, and then stays silent."""

    REFUSED = enum.auto()
    ACCEPTED = enum.auto()
    NONE = enum.auto()


class Predecessor(msgspec.Struct, frozen=True):
    """The host that had the controller before this one, and was not heard of any more."""

    node: str  # in Slurm
    job: str
    door: tuple[str, int]  # where its launcher listened


class SlurmEngine:
    """Lives in the launcher's event loop.

    `drained(node, reason)`: an administrator takes that node away, or (None) lets it stay after all. `join`: the
    command with which a host joins this run; it reads `token` from a file in `run_dir`, so all nodes must see that."""

    def __init__(
        self,
        hosts: HostsEngine,
        *,
        run: str,
        job: str,
        node: str,
        nodes: Sequence[str],
        survives_nodes: bool,
        run_dir: Path,
        join: Sequence[str],
        token: JoinToken,
        slurm: Slurm,
        drained: Callable[[str, str | None], None],
        say: Callable[[str], None],
        may_act: Callable[[], bool] = lambda: True,
        predecessor: Predecessor | None = None,
    ) -> None:
        """`nodes`: of this job, by Slurm's names. `may_act`: this host has the run's controller, and no other one."""
        self._may_act, self._predecessor = may_act, predecessor
        self._hosts, self._slurm = hosts, slurm
        self._nodes = frozenset((node, *nodes))
        self._run, self._job, self._own = run, job, node
        self._survives_nodes = survives_nodes
        self._run_dir = run_dir
        self._join, self._token = tuple(join), token
        self._drained, self._say = drained, say
        self._marks: dict[str, _Mark] = {}  # by Slurm's name
        self._out: set[str] = set()  # Slurm's names of evicted nodes
        self._told: set[str] = set()  # drains that the run knows of
        self._urgent: dict[str, float] = {}  # request -> when a slot began to wait for it
        self._pilots: dict[str, str] = {}  # job that has not joined yet -> why it waits
        self._all_pilots: list[str] = []
        self._next_pilot_at, self._next_states_at = 0.0, 0.0
        self._said = ""
        self._wake = asyncio.Event()
        self._working: asyncio.Task[None] | None = None

    def watch(self, on_loss: OnLoss) -> None:
        self._hosts.watch(on_loss)
        self._working = asyncio.get_running_loop().create_task(self._work())

    def prepare(self, number: int) -> None:
        self._hosts.prepare(number)

    def acquire(self, request: str, *, is_urgent: bool = True) -> None:
        if is_urgent and self._hosts.was_complete:
            self._urgent.setdefault(request, time.monotonic())
        self._hosts.acquire(request, is_urgent=is_urgent)

    def release(self, node: str) -> None:
        self._hosts.release(node)

    def evict(
        self, node: str, why: str = "", *, is_silent: bool = False, is_drill: bool = False, may_spare: bool = False
    ) -> str:
        host = next((each for each in self._hosts.hosts if node in each.nodes), None)
        name = host.join.scheduler_node if host is not None else self._own_name(node)
        is_heard = host is None or host.is_heard_within(SILENT_S)
        is_shared = host is not None and self._is_of_others(host)
        why_spared = self._hosts.evict(node, why, is_silent=is_silent, is_drill=is_drill, may_spare=may_spare)
        if why_spared or not name or name in self._told or is_drill:
            return why_spared  # an administrator's own words stay
        if is_shared:
            self._say(f"more than one host says that it is {name}: its state in Slurm stays")
            return ""
        if is_silent and is_heard:
            log.info("%s is not drained: only the agent of %s was silent, its host answers", name, node)
            return ""
        is_down = not is_heard and self._survives_nodes and name != self._own
        self._out.add(name)
        self._marks[name] = _Mark(
            "down" if is_down else "drain",
            f"{MARK} {self._run}: {why or 'evicted'}",
            host.join.scheduler_job if host is not None else self._job,
        )
        self._wake.set()
        return ""

    def fence(self, node: str) -> None:
        self._hosts.fence(node)

    def lose(self, node: str) -> None:
        self._hosts.lose(node)

    def cut(self, node: str, seconds: float) -> None:
        self._hosts.cut(node, seconds)

    def flap(self, node: str) -> None:
        self._hosts.flap(node)

    def freeze(self, node: str, seconds: float) -> None:
        self._hosts.freeze(node, seconds)

    async def end(self, grace_s: float, *, spares: bool = False) -> None:
        if self._working is not None:
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)
        for name in _PILOT_FILES:  # it may be the user's own token, which serves other runs as well
            with contextlib.suppress(OSError):
                (self._run_dir / name).unlink()
        may_act = self._may_act()  # hosts that have ended confirm nothing
        await self._hosts.end(grace_s, spares=spares)
        if not may_act:
            return  # another host has taken over the reports to Slurm by now, and the jobs
        left = list(self._all_pilots)
        try:
            async with asyncio.timeout(END_S):
                while left:
                    with contextlib.suppress(SlurmError):
                        await self._slurm.cancel(left[0])
                    del left[0]
                await self._mark_predecessor()  # the run may have been over before
                await self._tell()
        except TimeoutError:
            self._say(f"Slurm has not answered for {END_S:g} s, and is asked no more{_not_done(left, self._marks)}")

    def _own_name(self, node: str) -> str:
        return self._own if node in self._hosts.local_nodes else ""

    async def _work(self) -> None:
        """Work until cancelled. A fault of ours here costs the reports to Slurm, and no training."""
        while True:
            try:
                if not self._may_act():
                    await asyncio.sleep(LOOK_S)
                    continue
                await self._mark_predecessor()
                await self._tell()
                if time.monotonic() >= self._next_states_at:
                    self._next_states_at = time.monotonic() + STATES_S
                    await self._look()
                await self._replace()
            except SlurmError as error:
                self._say_once(f"Slurm does not answer ({error}); nothing is released or drained on that, trying again")
            except Exception:
                log.exception("Slurm was not asked")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._wake.wait()
            self._wake.clear()

    async def _mark_predecessor(self) -> None:
        """Its machine is out, unless it says that nothing listens there any more: then only its launcher ended.

        It is the node of the batch script as well. Slurm ends that script when a node that is down comes back, and with
        it the job; so a machine that still takes connections, whose processes stand still, is only drained. One that
        is switched on again is no danger to the job if it was set down before, and else is."""
        lost = self._predecessor
        if lost is None or not lost.node:
            return
        answer = await _knock(lost.door)
        self._predecessor = None
        if answer is _Answer.REFUSED:
            self._say(f"{lost.node} answers, and only its launcher has ended: its state in Slurm stays")
            return
        self._out.add(lost.node)
        state = "down" if self._survives_nodes and answer is _Answer.NONE else "drain"
        why = f"it had the controller, and was not heard of; {self._own} continues"
        self._marks[lost.node] = _Mark(state, f"{MARK} {self._run}: {why}", lost.job)

    async def _tell(self) -> None:
        """What it does not take for want of rights is not tried again; the rest is."""
        for name, mark in list(self._marks.items()):
            state, reason = mark.state, mark.reason
            try:
                is_ours = await self._is_ours(name, mark.job)
                if is_ours:
                    await self._slurm.set_node(name, state, reason)
            except SlurmError as error:
                if not error.is_denied:
                    self._say_once(f"Slurm does not take that {name} is out ({error}); trying again")
                    continue
                self._say(
                    f"this user may not set {name} to {state} in Slurm ({error}): tell its administrator: {reason}"
                )
            else:
                told = f"{name} is set to {state}" if is_ours else f"{name} is not a node of this run's jobs, and stays"
                self._say(f"Slurm: {told}: {reason}")
            if self._marks.get(name) == mark:
                del self._marks[name]

    async def _is_ours(self, name: str, job: str) -> bool:
        """A host says itself which node it is: of another job than this one Slurm has to agree. Raises SlurmError."""
        return name in self._nodes or (bool(job) and is_of(await self._slurm.job_fields(job), name))

    def _is_of_others(self, host: Host) -> bool:
        """Whether another host that is there has the same name in Slurm, so that the name is ambiguous."""
        name = host.join.scheduler_node
        others = [each for each in self._hosts.hosts if each is not host and each.join.scheduler_node == name]
        return name == self._own or any(each.is_heard for each in others)

    async def _look(self) -> None:
        """Raises SlurmError; then nothing is known, and nothing follows."""
        hosts = (host for host in self._hosts.hosts if host.join.scheduler_node and not host.is_done)
        nodes = {host.join.scheduler_node: host.node for host in hosts if not self._is_of_others(host)}
        if self._own:
            nodes[self._own] = next(iter(self._hosts.local_nodes), "")
        states = await self._slurm.node_states(sorted(nodes))
        self._said = ""
        for name, node in nodes.items():
            found = states.get(name)
            if found is not None:
                self._take_state(name, node, found)

    def _take_state(self, name: str, node: str, found: NodeState) -> None:
        if not found.is_draining:
            if found.is_usable and name in self._told and node:
                self._say(f"Slurm: {name} may be used again")
                self._drained(node, None)
            self._told.discard(name)
        elif node and name not in self._told and name not in self._out and not found.reason.startswith(MARK):
            self._told.add(name)
            self._say(f"Slurm: {name} is drained by its administrator: {found.reason}")
            self._drained(node, found.reason)

    async def _replace(self) -> None:
        """A node more for each slot that waits without a spare or another job that is coming. Raises SlurmError."""
        waiting = self._hosts.waiting()
        self._urgent = {request: since for request, since in self._urgent.items() if request in waiting}
        if not self._urgent and not self._pilots:
            return
        await self._ask_after_pilots()
        now = time.monotonic()
        due = sum(now - since > PILOT_AFTER_S for since in self._urgent.values())
        if due > len(self._pilots) and now >= self._next_pilot_at:
            await self._ask_for_pilot(now)

    async def _ask_for_pilot(self, now: float) -> None:
        self._next_pilot_at = now + PILOT_AGAIN_S
        fields = await self._slurm.job_fields(self._job)
        options = batch.pilot_options(fields, run_dir=str(self._run_dir), exclude=sorted(self._out))
        token, script = (self._run_dir / name for name in _PILOT_FILES)
        try:
            write_whole(token, self._token.reveal().encode(), mode=0o600)
            write_whole(script, batch.pilot(self._join, str(token)).encode(), mode=0o700)
            job = await self._slurm.submit(script, options)
        except (OSError, SlurmError) as error:
            self._say(f"no spare is left, and Slurm gives no other node ({error}); asking again in {PILOT_AGAIN_S:g} s")
            return
        self._pilots[job] = ""
        self._all_pilots.append(job)
        self._next_pilot_at = now
        self._say(f"no spare is left: Slurm job {job} asks for one node more")

    async def _ask_after_pilots(self) -> None:
        joined = {host.join.scheduler_job for host in self._hosts.hosts}
        for job, said in list(self._pilots.items()):
            fields = {} if job in joined else await self._fields_of_pilot(job)
            state = fields.get("JobState", "")
            if state == "PENDING":
                why = f"Slurm job {job} waits: {fields.get('Reason', 'no reason given')}"
                if why != said:
                    self._pilots[job] = why
                    self._say(why)
            elif state not in _ALIVE:
                del self._pilots[job]  # it joined, or has ended: whatever still waits asks for another one
                if job not in joined:
                    self._say(f"Slurm job {job} has ended ({state or 'unknown'}) and gave no node")
                    self._next_pilot_at = time.monotonic() + PILOT_AGAIN_S

    async def _fields_of_pilot(self, job: str) -> dict[str, str]:
        """Nothing of one that Slurm knows no more: it has ended a while ago. Raises SlurmError."""
        try:
            return await self._slurm.job_fields(job)
        except SlurmError as error:
            if error.is_of_no_job:
                return {}
            raise

    def _say_once(self, text: str) -> None:
        """Until Slurm has answered again."""
        log.warning("%s", text)
        if not self._said:
            self._said = text
            self._say(text)


async def _knock(door: tuple[str, int]) -> _Answer:
    try:
        async with asyncio.timeout(ANSWER_S):
            _, writer = await asyncio.open_connection(*door)
    except ConnectionRefusedError:
        return _Answer.REFUSED
    except OSError:
        return _Answer.NONE
    writer.transport.abort()
    return _Answer.ACCEPTED


def _not_done(jobs: Sequence[str], marks: Mapping[str, _Mark]) -> str:
    told = "".join(f"; not reported: {name} is out ({mark.reason})" for name, mark in marks.items())
    return told + (f"; to be ended by hand: scancel {' '.join(jobs)}" if jobs else "")
