"""All nodes share the machine's own loopback: needs no rights, costs nothing, and cannot be cut."""

import socket
from collections.abc import Callable
from typing import TypeVar

from everstep.engines.network.protocol import NetworkError, Plug

T = TypeVar("T")
_BACKLOG = 2048
_WHY_NOT = "the nodes of this run share the machine's loopback: start it with --network namespaces"


class Loopback:
    """A `Network`."""

    host = "127.0.0.1"

    def call(self, make: Callable[[], T]) -> T:
        return make()

    def listen(self) -> socket.socket:
        return socket.create_server((self.host, 0), backlog=_BACKLOG)

    def plug(self, node: str) -> Plug:
        return Plug(address=self.host)

    def unplug(self, node: str) -> None:
        pass

    def cut(self, node: str, *, is_cut: bool) -> None:
        raise NetworkError(_WHY_NOT)

    def close(self) -> None:
        pass
