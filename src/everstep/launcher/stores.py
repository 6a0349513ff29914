"""One key-value store per generation, in this process: workers come and go, the store they meet in does not.

A store of its own for every generation means that no key is stale and no port is fought over, and an old worker
cannot write into the new one's store. It listens where the nodes are, and nowhere else: on
loopback, or on a switch that nothing outside of this machine reaches.
"""

import datetime
import socket
from typing import Any

from everstep.engines.network import Loopback, Network

_TIMEOUT = datetime.timedelta(seconds=30)
_BACKLOG = 2048
_KEPT_GENERATIONS = 2
"""The running one, and the one before, whose last workers may still be ending."""


class Stores:
    def __init__(self, first: socket.socket | None = None, network: Network | None = None) -> None:
        """`first`: listening socket for the first store that is opened (--master-port). `network`: where nodes reach
        it."""
        self._first = first
        self._network = network or Loopback()
        self._open: dict[int, tuple[Any, int]] = {}

    def open(self, generation: int) -> tuple[str, int]:
        """Host and port; the same ones when asked again. Raises OSError or RuntimeError."""
        if generation not in self._open:
            self._open[generation] = self._network.call(self._make)
            for old in [number for number in self._open if number < generation - _KEPT_GENERATIONS]:
                del self._open[old]  # the last reference: the server thread ends, the port is free
        return self._network.host, self._open[generation][1]

    def close(self) -> None:
        self._open.clear()
        if self._first is not None:
            self._first.close()
            self._first = None

    def _make(self) -> tuple[Any, int]:
        from torch.distributed import TCPStore

        sock, self._first = self._first or socket.create_server((self._network.host, 0), backlog=_BACKLOG), None
        port = sock.getsockname()[1]
        fd = sock.detach()  # the store closes it
        store = TCPStore(
            host_name=self._network.host,
            port=port,
            world_size=None,
            is_master=True,
            timeout=_TIMEOUT,
            wait_for_workers=False,
            master_listen_fd=fd,
        )
        return store, port
