"""The first host's part: the door at the endpoint, and the engine that gives the other hosts' nodes.

Made by `launcher.run` for a run over several hosts, opened and closed by the `Supervisor`.
"""

import socket
from collections.abc import Callable

import msgspec

from everstep.agent.processes import ahead
from everstep.controller.peers.listening import CERTIFICATE_NAME, KEY_NAME
from everstep.controller.record.spec_file import SPEC_NAME
from everstep.engines.hosts.admission import Shape
from everstep.engines.hosts.door import Door
from everstep.engines.hosts.engine import HostsEngine
from everstep.engines.hosts.files import Received
from everstep.engines.hosts.places import Places
from everstep.engines.local import LocalEngine
from everstep.journal.runs import RunDir
from everstep.launcher.arguments.hosts import Hosts
from everstep.launcher.hosts.place import interface_of
from everstep.launcher.rundir import Prepared
from everstep.version import __version__
from everstep.wire.joining import JoinToken, Over


class Fleet:
    def __init__(
        self, hosts: Hosts, sock: socket.socket, token: JoinToken, prepared: Prepared, say: Callable[[str], None]
    ) -> None:
        """`sock`: listens at the endpoint."""
        self._hosts = hosts
        self._sock = sock
        self._token = token
        self._prepared = prepared
        self._say = say
        self._engine: HostsEngine | None = None
        self._door: Door | None = None
        self.received = Received(prepared.path, Places(RunDir(prepared.path).journal).node_of)

    @property
    def agent_arguments(self) -> tuple[str, ...]:
        return agent_arguments(str(self._sock.getsockname()[0]), self._hosts.node_rank)

    def engine(self, local: LocalEngine, port: int) -> HostsEngine:
        """`port`: where agents find the controller."""
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
        )
        return self._engine

    async def open(self) -> None:
        assert self._engine is not None
        path = self._prepared.path
        self._door = Door(self._sock, path / CERTIFICATE_NAME, path / KEY_NAME, self._token, self._engine.welcome)
        await self._door.open()

    def announce(self, exit_code: int, outcome: str, why: str) -> None:
        if self._engine is not None:
            self._engine.announce(Over(exit_code=exit_code, outcome=outcome, why=why))

    async def close(self) -> None:
        if self._door is not None:
            await self._door.close()


def agent_arguments(address: str, node_rank: int | None) -> tuple[str, ...]:
    """Of an agent on a host that others reach at `address`."""
    interface = interface_of(address)
    slot = ("--slot", str(node_rank)) if node_rank is not None else ()
    return (*slot, *(("--interface", interface) if interface else ()))
