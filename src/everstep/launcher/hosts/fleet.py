"""The first host's part: the door at the endpoint, and the engine that gives the other hosts' nodes.

Made by `launcher.run` for a run over several hosts, opened and closed by the `Supervisor`.
"""

import secrets
import shutil
import signal
import socket
import sys
from collections.abc import Callable

import msgspec

from everstep.agent.processes import ahead
from everstep.controller.record.spec_file import SPEC_NAME
from everstep.engines.children import Children
from everstep.engines.hosts.admission import Shape
from everstep.engines.hosts.door import Door, Line
from everstep.engines.hosts.engine import HostsEngine
from everstep.engines.hosts.files import Received
from everstep.engines.hosts.places import Places
from everstep.engines.local import LocalEngine
from everstep.engines.memory_keeper import MemoryKeeper
from everstep.engines.slurm.commands import Slurm
from everstep.engines.slurm.engine import Predecessor, SlurmEngine
from everstep.fabric.readers.hostlist import expand
from everstep.fabric.topology.values import FabricError
from everstep.journal.runs import RunDir
from everstep.launcher.arguments.hosts import Hosts, SlurmStep, shown
from everstep.launcher.heirs.asking import who
from everstep.launcher.heirs.copying import Copying
from everstep.launcher.heirs.proving import Acquaintances
from everstep.launcher.heirs.willing import is_wished, misunderstood, refusal
from everstep.launcher.reach.munge import Either, MungeToken
from everstep.launcher.reach.place import interface_of
from everstep.launcher.rundir.rundir import Prepared
from everstep.model.names import MachineName, own_machine_name
from everstep.version import __version__
from everstep.wire.credentials import CERTIFICATE_NAME, KEY_NAME
from everstep.wire.heirs import HAS_CONTROLLER, FromHeir, Roster, Vote, Voter, public
from everstep.wire.joining import JoinToken, Over, Proofs

CONFIRMED_WITHIN = 0.6
"""Times `node_silent_s`: a controller's host that enough others have not heard of for so long reports it."""


class Inherited(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a host brings along from before when it takes over for another one."""

    epoch: int
    own: Voter
    session: str  # of this host
    acquaintances: Acquaintances
    roster: Roster
    endpoints: tuple[tuple[str, int], ...]
    begins_at: int  # bytes of the journal that is there
    earlier_epoch: int
    door: Door
    numbers: dict[str, int]  # of hosts, by session
    run_dir: str = ""  # in which the run was begun, on its first host
    predecessor: Predecessor | None = None  # as Slurm knows it
    copied: tuple[socket.socket, socket.socket] | None = None  # between launcher and controller


class Fleet:
    def __init__(
        self,
        hosts: Hosts,
        sock: socket.socket,
        token: JoinToken,
        munge: MungeToken | None,
        prepared: Prepared,
        say: Callable[[str], None],
        inherited: Inherited | None = None,
    ) -> None:
        """`sock`: listens at the endpoint. `inherited`: another host was the first one."""
        self._inherited = inherited
        self.copying: Copying | None = None
        session = inherited.session if inherited is not None else secrets.token_hex(16)
        self._session = session
        self._acquaintances = inherited.acquaintances if inherited is not None else Acquaintances(session, {})
        self._proofs: Proofs = self._acquaintances.at_door(token if munge is None else Either(token, munge))
        self._hosts = hosts
        self._sock = sock
        self._token = token
        self._prepared = prepared
        self.say = say
        self._engine: HostsEngine | None = None
        self._door: Door | None = None
        num = hosts.num + prepared.file.spec.num_standby
        self.received = Received(prepared.path, Places(RunDir(prepared.path).journal).node_of, num)

    @property
    def copied_fd(self) -> int | None:
        """The controller's end of the socket that carries how much of the journal others have."""
        return self.copying.controllers_end.fileno() if self.copying is not None else None

    @property
    def end_signal(self) -> int:
        """The signal that ends our own processes here."""
        return end_signal(self._hosts)

    @property
    def agent_arguments(self) -> tuple[str, ...]:
        return agent_arguments(str(self._sock.getsockname()[0]), self._hosts.node_rank)

    def engine(
        self,
        local: LocalEngine,
        children: Children,
        port: int,
        drained: Callable[[str, str | None], None],
        on_stop: Callable[[int, str], None],
        keeper: MemoryKeeper,
        end: Callable[[str], None],
    ) -> HostsEngine | SlurmEngine:
        """`port`: where agents find the controller. `drained`, `on_stop`: as the engines have them. `end`: this host
        must not continue the run."""
        spec = self._prepared.file.spec
        self.copying = self._copying(local, keeper, end)
        self._engine = HostsEngine(
            local,
            run=self._prepared.file.run,
            shape=Shape(
                num_hosts=self._hosts.num,
                num_standby=spec.num_standby,
                nproc=spec.nproc_per_node,
                program=spec.program,
                everstep_version=__version__,
                torch_version=spec.torch_version,
            ),
            spec=(self._prepared.path / SPEC_NAME).read_bytes(),
            port=port,
            node_rank=self._hosts.node_rank,
            host=own_machine_name(socket.gethostname()),
            first=self,
            received=self.received,
            ahead=ahead.path_in(self._prepared.path),
            lease_s=self._prepared.file.policy.lease_s,
            on_stop=on_stop,
            job=self._hosts.slurm.job if self._hosts.slurm is not None else "",
            heirs=self.copying,
            earlier=self._inherited.numbers if self._inherited is not None else None,
        )
        step = self._hosts.slurm
        return self._engine if step is None else self._under_slurm(self._engine, children, step, drained)

    def credentials(self, node: str, machine: MachineName) -> bytes:
        return msgspec.json.encode(self._prepared.keys.of_agent(node, machine, is_encrypted=True))

    def _copying(self, local: LocalEngine, keeper: MemoryKeeper, end: Callable[[str], None]) -> Copying | None:
        """The replication of the journal. None: this host has no successor."""
        given, step = self._inherited, self._hosts.slurm
        if given is None and not self._may_be_succeeded():
            return None
        legacy = msgspec.structs.replace(
            self._prepared.keys.legacy(),
            run_dir=given.run_dir if given is not None else str(self._prepared.path),
            join_token=self._token.reveal(),
            scheduler_node=step.node if step is not None else "",
            scheduler_job=step.job if step is not None else "",
        )
        address, port = self._sock.getsockname()[:2]
        own = Voter(
            number=0,
            session=public(self._session),
            host=own_machine_name(socket.gethostname()),
            address=address,
            port=port,
        )
        epoch = given.epoch if given is not None else 1
        return Copying(
            journal=RunDir(self._prepared.path).journal,
            own=given.own if given is not None else own,
            acquaintances=self._acquaintances,
            session=self._session,
            endpoints=given.endpoints if given is not None else ((self._hosts.host, self._hosts.port), (address, port)),
            legacy=legacy,
            epoch=epoch,
            roster=given.roster if given is not None else None,
            begins_at=given.begins_at if given is not None else 0,
            sockets=given.copied if given is not None else None,
            earlier_epoch=given.earlier_epoch if given is not None else 0,
            patience_s=CONFIRMED_WITHIN * self._prepared.file.policy.node_silent_s,
            limit_s=self._hosts.join_limit_s,
            host=_ControllerHost(local, keeper, self._acquaintances, epoch, end=end, say=self.say),
        )

    def _may_be_succeeded(self) -> bool:
        """Without one, a run that would only wait for the host that it lost ends at once, and is started again."""
        step = self._hosts.slurm
        if odd := misunderstood():
            self.say(odd)
        goes_on = self._prepared.file.spec.num_standby > 0 or self._hosts.least > 0
        goes_on = goes_on and (step is None or step.survives_nodes)  # else Slurm ends the job with its first lost node
        if not (is_wished() or goes_on):
            return False
        why = refusal(self._prepared.path)
        if why:
            self.say(f"no host continues with the controller if this one is lost: {why}")
        return not why

    def _under_slurm(
        self, hosts: HostsEngine, children: Children, step: SlurmStep, drained: Callable[[str, str | None], None]
    ) -> HostsEngine | SlurmEngine:
        if shutil.which("scontrol") is None or not step.node:
            self.say("Slurm's commands are not on this host's PATH, so lost nodes are not reported to Slurm")
            return hosts
        return SlurmEngine(
            hosts,
            run=self._prepared.file.run,
            job=step.job,
            node=step.node,
            nodes=nodes_of(step),
            survives_nodes=step.survives_nodes,
            run_dir=self._prepared.path,
            join=(sys.executable, "-P", "-m", "everstep.cli.main", "agent", "--join", self._own_endpoint),
            token=self._token,
            slurm=Slurm(children, self._prepared.path / "slurm"),
            drained=drained,
            say=self.say,
            may_act=self._may_act,
            predecessor=self._inherited.predecessor if self._inherited is not None else None,
        )

    @property
    def _own_endpoint(self) -> str:
        """Where hosts that start later find this one."""
        return self._hosts.endpoint if self._inherited is None else shown(*self._sock.getsockname()[:2])

    def _may_act(self) -> bool:
        """Whether no other host has the controller. One that stood still and was replaced meanwhile must not report to
        Slurm."""
        return self.copying is None or self.copying.is_confirmed

    async def open(self) -> None:
        assert self._engine is not None
        if self.copying is not None:
            self.copying.start()
        path = self._prepared.path
        if self._inherited is not None:
            self._door = self._inherited.door
            self._door.welcome = self._engine.welcome
            return
        certificate, key = path / CERTIFICATE_NAME, path / KEY_NAME
        self._door = Door(self._sock, certificate, key, self._proofs, self._engine.welcome, on_question=self._answer)
        await self._door.open()

    async def _answer(self, question: FromHeir, line: Line) -> None:
        epoch = self.copying.epoch if self.copying is not None else 1
        endpoints = self.copying.endpoints if self.copying is not None else ()
        line.send(Vote(is_granted=False, epoch=epoch, why=HAS_CONTROLLER, endpoints=endpoints))

    def announce(self, exit_code: int, outcome: str, why: str) -> None:
        if self.copying is not None:
            self.copying.finish()
        if self._engine is not None:
            self._engine.announce(Over(exit_code=exit_code, outcome=outcome, why=why))

    def forsake(self, exit_code: int, outcome: str, why: str) -> None:
        """This host has lost the run to another one."""
        if self._engine is not None:
            self._engine.forsake(Over(exit_code=exit_code, outcome=outcome, why=why))

    async def close(self) -> None:
        if self._door is not None:
            await self._door.close()
        if self.copying is not None:
            await self.copying.close()


class _ControllerHost:
    """This host, for the hosts that keep its journal."""

    def __init__(
        self,
        local: LocalEngine,
        keeper: MemoryKeeper,
        acquaintances: Acquaintances,
        epoch: int,
        *,
        end: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        self._local, self._keeper, self._acquaintances, self._epoch = local, keeper, acquaintances, epoch
        self.end, self.say = end, say

    def nodes(self) -> tuple[str, ...]:
        return tuple(self._local.pids)

    def note_confirmed(self, at: float) -> None:
        self._keeper.tell({"controller": {"epoch": self._epoch, "confirmed_at": max(at, 0.0)}})

    async def newest_epoch(self, roster: Roster) -> int:
        others = [each for each in roster.voters if each.session != self._acquaintances.own]
        return await who(others, self._acquaintances)


def nodes_of(step: SlurmStep) -> tuple[str, ...]:
    """None where Slurm's list cannot be read: then Slurm is asked for each."""
    try:
        return tuple(expand(step.nodes, "SLURM_STEP_NODELIST"))
    except FabricError:
        return ()


def end_signal(hosts: Hosts) -> int:
    """Return the signal that ends our own processes in order. Slurm sends SIGTERM to every process of a step when the
    job is to end, and the agents are to keep the last step until it is saved."""
    return signal.SIGTERM if hosts.slurm is None else signal.SIGUSR2


def agent_arguments(address: str, node_rank: int | None) -> tuple[str, ...]:
    """Arguments of an agent on a host that others reach at `address`."""
    interface = interface_of(address)
    slot = ("--slot", str(node_rank)) if node_rank is not None else ()
    return (*slot, *(("--interface", interface) if interface else ()))
