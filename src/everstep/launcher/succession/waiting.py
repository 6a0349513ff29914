"""A controller that is started on the host that would take over, has imported what it needs, and waits to be wanted.

A cold start takes half a second, and on a starved host many: just when a host is lost.
"""

import socket
from collections.abc import Callable
from pathlib import Path

from everstep.engines.children import Child, Children
from everstep.engines.network import Address
from everstep.launcher.arguments import checks
from everstep.launcher.controller_keeper import arguments
from everstep.linux.children import Ended

AFTER_S = 10.0
"""How long a host waits before it starts a controller that stands by: ranks that start need the CPUs."""


class ReadyAddress(Address):
    """A `Network` whose socket for nodes was made before."""

    def __init__(self, host: str, for_nodes: socket.socket) -> None:
        super().__init__(host)
        self._for_nodes = for_nodes

    def listen(self) -> socket.socket:
        return self._for_nodes


class Waiting:
    def __init__(self, children: Children, run_dir: Path, address: str, end_signal: int) -> None:
        """Raises OSError, PortInUseError."""
        self.listener = checks.bind(0, "the controller's port")
        self.for_nodes = Address(address).listen()
        self.copied = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._go, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._on_end: Callable[[Child, Ended], None] = lambda child, ended: None
        with theirs:
            argv, fds = arguments(
                run_dir,
                listen_fds=(self.listener.fileno(),),
                tls_fds=(self.for_nodes.fileno(),),
                copied_fd=self.copied[1].fileno(),
                end_signal=end_signal,
            )
            argv += ["--wait-fd", str(theirs.fileno())]
            self._child = children.spawn("controller", argv, on_end=self._tell_end, pass_fds=(*fds, theirs.fileno()))

    def begin(self, on_end: Callable[[Child, Ended], None]) -> Child | None:
        """Release it; None: it has ended, and another one must be started."""
        self._on_end = on_end
        if self._child.ended is not None:
            return None
        try:
            self._go.send(b"go")
        except OSError:
            return None
        return self._child

    def close(self) -> None:
        """It is not wanted any more."""
        self._go.close()
        for sock in (self.listener, self.for_nodes, *self.copied):
            sock.close()

    def _tell_end(self, child: Child, ended: Ended) -> None:
        self._on_end(child, ended)
