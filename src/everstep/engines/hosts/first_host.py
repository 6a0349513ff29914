"""What the launcher of the first host does for the engine."""

from typing import Protocol

from everstep.engines.hosts.host import Host
from everstep.model.names import MachineName
from everstep.wire.heirs import FromHeir


class Heirs(Protocol):
    """Succession: other hosts that may take over the controller when this one is gone."""

    epoch: int
    endpoints: tuple[tuple[str, int], ...]

    def joined(self, host: Host) -> None:
        """The host is connected, and knows it."""

    def hear(self, host: Host, message: FromHeir) -> None: ...


class FirstHost(Protocol):
    """The launcher of the host at the endpoint."""

    def credentials(self, node: str, machine: MachineName) -> bytes:
        """What that node's agent on that machine proves itself with, encoded."""

    def say(self, text: str) -> None:
        """To the person at the terminal."""
