"""The first host's part: the door at the endpoint, and the engine that gives the other hosts' nodes.

Made by `launcher.run` for a run over several hosts, opened and closed by the `Supervisor`.
"""

import shutil
import signal
import socket
import sys
from collections.abc import Callable

import msgspec

from everstep.agent.processes import ahead
from everstep.controller.peers.listening import CERTIFICATE_NAME, KEY_NAME
from everstep.controller.record.spec_file import SPEC_NAME
from everstep.engines.children import Children
from everstep.engines.hosts.admission import Shape
from everstep.engines.hosts.door import Door
from everstep.engines.hosts.engine import HostsEngine
from everstep.engines.hosts.files import Received
from everstep.engines.hosts.places import Places
from everstep.engines.local import LocalEngine
from everstep.engines.slurm.commands import Slurm
from everstep.engines.slurm.engine import SlurmEngine
from everstep.journal.runs import RunDir
from everstep.launcher.arguments.hosts import Hosts, SlurmStep
from everstep.launcher.hosts.munge import Either, MungeToken
from everstep.launcher.hosts.place import interface_of
from everstep.launcher.rundir import Prepared
from everstep.version import __version__
from everstep.wire.joining import JoinToken, Over, Proofs


class Fleet:
    def __init__(
        self,
        hosts: Hosts,
        sock: socket.socket,
        token: JoinToken,
        munge: MungeToken | None,
        prepared: Prepared,
        say: Callable[[str], None],
    ) -> None:
        """`sock`: listens at the endpoint."""
        self._proofs: Proofs = token if munge is None else Either(token, munge)
        self._hosts = hosts
        self._sock = sock
        self._token = token
        self._prepared = prepared
        self._say = say
        self._engine: HostsEngine | None = None
        self._door: Door | None = None
        self.received = Received(prepared.path, Places(RunDir(prepared.path).journal).node_of)

    @property
    def end_signal(self) -> int:
        """Of our own processes here."""
        return end_signal(self._hosts)

    @property
    def agent_arguments(self) -> tuple[str, ...]:
        return agent_arguments(str(self._sock.getsockname()[0]), self._hosts.node_rank)

    def engine(
        self,
        local: LocalEngine,
        children: Children,
        port: int,
        drained: Callable[[str, str], None],
        on_stop: Callable[[int, str], None],
    ) -> HostsEngine | SlurmEngine:
        """`port`: where agents find the controller. `drained`, `on_stop`: as the engines have them."""
        spec = self._prepared.file.spec
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
            host=socket.gethostname(),
            credentials=lambda node: msgspec.json.encode(self._prepared.keys.of_agent(node, is_encrypted=True)),
            received=self.received,
            ahead=ahead.path_in(self._prepared.path),
            lease_s=self._prepared.file.policy.lease_s,
            say=self._say,
            on_stop=on_stop,
        )
        step = self._hosts.slurm
        return self._engine if step is None else self._under_slurm(self._engine, children, step, drained)

    def _under_slurm(
        self, hosts: HostsEngine, children: Children, step: SlurmStep, drained: Callable[[str, str], None]
    ) -> HostsEngine | SlurmEngine:
        if shutil.which("scontrol") is None or not step.node:
            self._say("Slurm's commands are not on this host's PATH, so lost nodes are not reported to Slurm")
            return hosts
        return SlurmEngine(
            hosts,
            run=self._prepared.file.run,
            job=step.job,
            node=step.node,
            survives_nodes=step.survives_nodes,
            run_dir=self._prepared.path,
            join=(sys.executable, "-P", "-m", "everstep.cli.main", "agent", "--join", self._hosts.endpoint),
            token=self._token,
            slurm=Slurm(children, self._prepared.path / "slurm"),
            drained=drained,
            say=self._say,
        )

    async def open(self) -> None:
        assert self._engine is not None
        path = self._prepared.path
        self._door = Door(self._sock, path / CERTIFICATE_NAME, path / KEY_NAME, self._proofs, self._engine.welcome)
        await self._door.open()

    def announce(self, exit_code: int, outcome: str, why: str) -> None:
        if self._engine is not None:
            self._engine.announce(Over(exit_code=exit_code, outcome=outcome, why=why))

    async def close(self) -> None:
        if self._door is not None:
            await self._door.close()


def end_signal(hosts: Hosts) -> int:
    """What ends our own processes in order. Slurm sends SIGTERM to every process of a step when the job is to end, and
    the agents are to keep the last step until it is saved."""
    return signal.SIGTERM if hosts.slurm is None else signal.SIGUSR2


def agent_arguments(address: str, node_rank: int | None) -> tuple[str, ...]:
    """Of an agent on a host that others reach at `address`."""
    interface = interface_of(address)
    slot = ("--slot", str(node_rank)) if node_rank is not None else ()
    return (*slot, *(("--interface", interface) if interface else ()))
