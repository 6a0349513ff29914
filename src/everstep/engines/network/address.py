"""Nodes on several hosts, which reach this one at one of its own addresses. Nothing listens anywhere else."""

import socket
from collections.abc import Callable
from typing import TypeVar

from everstep.engines.network.protocol import NetworkError, Plug

T = TypeVar("T")
_BACKLOG = 2048


class Address:
    """A `Network`."""

    def __init__(self, host: str) -> None:
        """`host`: a numeric address of this machine."""
        self.host = host

    def call(self, make: Callable[[], T]) -> T:
        return make()

    def listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        return socket.create_server((self.host, 0), family=family, backlog=_BACKLOG)

    def plug(self, node: str) -> Plug:
        return Plug(address=self.host)

    def unplug(self, node: str) -> None:
        pass

    def cut(self, node: str, *, is_cut: bool) -> None:
        raise NetworkError("the network between the hosts of this run is not everstep's, so it cuts nothing there")

    def close(self) -> None:
        pass
