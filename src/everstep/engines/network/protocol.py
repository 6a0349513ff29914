"""What the launcher and the local engine need of a network between nodes, and the choice between the two."""

import socket
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from everstep.errors import EverstepError

T = TypeVar("T")


class NetworkError(EverstepError):
    """The message says what is missing."""


class Plug(msgspec.Struct, frozen=True, kw_only=True):
    """A node's place in the network."""

    address: str
    namespace_fd: int | None = None  # the node's own; None: it shares the launcher's. The caller closes it


class Network(Protocol):
    @property
    def host(self) -> str:
        """Where nodes reach what is made by `call`."""

    def call(self, make: Callable[[], T]) -> T:
        """Run it where sockets that it makes can be reached by nodes. Raises what it raises."""

    def listen(self) -> socket.socket:
        """A socket that nodes can connect to, but not from outside this machine. Raises OSError."""

    def plug(self, node: str) -> Plug:
        """Raises NetworkError."""

    def unplug(self, node: str) -> None:
        """It is gone. Unknown nodes are ignored."""

    def cut(self, node: str, *, is_cut: bool) -> None:
        """Nothing goes to the node or comes from it any more, or again. Raises NetworkError."""

    def close(self) -> None: ...
