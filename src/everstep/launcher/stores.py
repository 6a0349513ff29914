"""One key-value store per generation, in this process: workers come and go, the store they meet in does not.

A store of its own for every generation means that no key is stale. All of them have the same port, as under torchrun: a
firewall, a script that was told the port, and a rank that was made ready ahead of time count on it. So the older one is
closed first; it is asked for only when no rank of the older generation lives. It listens where the nodes are, nowhere
else: on loopback, or on a switch that nothing outside of this machine reaches, or at the address that the user named.
"""

import datetime
import logging
import socket
import threading
from typing import Any

from everstep.engines.network import Network, is_of_its_own
from everstep.errors import ConfigError
from everstep.launcher.arguments import checks
from everstep.launcher.arguments.settings import Settings

_TIMEOUT = datetime.timedelta(seconds=30)
_BACKLOG = 2048
_THREAD_NAME = "everstep-store"

_LOOPBACK = ("localhost", "127.0.0.1")

log = logging.getLogger("everstep.launcher")


def stores_for(settings: Settings, network: Network) -> "Stores":
    """Where ranks meet, with its port taken. Raises PortInUseError, ConfigError."""
    told, port = settings.store_host, settings.store_port
    address = network.host
    if is_of_its_own(network):
        if told not in _LOOPBACK:
            raise ConfigError(
                f"{told} as MASTER_ADDR: nodes in namespaces meet at {network.host}; leave one of them out"
            )
        told = network.host
    elif told in _LOOPBACK:
        told = told if network.host in _addresses(told) else network.host
    else:
        address = next(iter(sorted(_addresses(told), key=lambda found: ":" in found)), "")
        if not address:
            raise ConfigError(f"{told} as MASTER_ADDR: the name is not known here. Nothing was started")
    flag = "--master-port" if port else "--local-addr"
    first = network.call(lambda: checks.bind(port, flag, address))
    return Stores(first, network, told, is_fixed=bool(port))


def _addresses(name: str) -> list[str]:
    try:
        return [str(info[4][0]) for info in socket.getaddrinfo(name.strip("[]"), None, type=socket.SOCK_STREAM)]
    except OSError:
        return []


def is_importing() -> bool:
    """Whether torch is being imported for the first store: an interpreter that ends in the middle of that may crash, or
    wait for it."""
    return any(thread.name == _THREAD_NAME for thread in threading.enumerate())


class Stores:
    def __init__(self, first: socket.socket, network: Network, told_host: str, *, is_fixed: bool = False) -> None:
        """`first`: listening socket for the first store. `network`: where nodes reach it. `told_host`: what ranks are
        told, a name of its address. `is_fixed`: another port will not do."""
        self._first: socket.socket | None = first
        self._network = network
        self._address: tuple[str, int] = first.getsockname()[:2]
        self._told_host = told_host
        self._is_fixed = is_fixed
        self._generation = -1
        self._store: Any = None
        self._opening: threading.Thread | None = None
        self._failure: ImportError | None = None

    def prepare(self) -> None:
        """Begin to import torch, beside the start of the controller and the agents. Not beside the ranks: what shows
        their output would have to wait for the interpreter."""
        self._opening = threading.Thread(target=self._import, name=_THREAD_NAME, daemon=True)
        self._opening.start()

    def _import(self) -> None:
        try:
            import torch.distributed  # noqa: F401
        except Exception as error:  # a broken build raises anything
            self._failure = ImportError(f"{type(error).__name__}: {error}")

    @property
    def is_ready(self) -> bool:
        """Whether `open` would wait for nothing."""
        return self._opening is None or not self._opening.is_alive()

    def open(self, generation: int) -> tuple[str, int]:
        """Host and port; the same ones when asked again. Closes the one before. Raises OSError, RuntimeError, or
        ImportError where torch cannot be imported."""
        if self._failure is not None:
            raise self._failure
        if generation > self._generation or self._store is None:
            self._store = None  # the last reference: the server thread ends, the port is free
            self._store = self._network.call(self._make)
            self._generation = generation
        return self._told_host, self._address[1]

    def close(self) -> None:
        """Waits for nothing: see `is_importing`."""
        self._store = None
        if self._first is not None:
            self._first.close()
            self._first = None

    def _make(self) -> Any:  # noqa: ANN401  (torch is imported late)
        from torch.distributed import TCPStore

        sock, self._first = self._first or self._listen(), None
        host, port = self._address = sock.getsockname()[:2]
        fd = sock.detach()  # the store closes it
        return TCPStore(
            host_name=host,
            port=port,
            world_size=None,
            is_master=True,
            timeout=_TIMEOUT,
            wait_for_workers=False,
            master_listen_fd=fd,
        )

    def _listen(self) -> socket.socket:
        """At the same port as before; at another one where somebody has taken it and nobody was promised it."""
        try:
            return _server(self._address)
        except OSError:
            if self._is_fixed:
                raise
            log.warning("port %d was taken between two generations; another one is used", self._address[1])
            return _server((self._address[0], 0))


def _server(address: tuple[str, int]) -> socket.socket:
    """With SO_REUSEADDR: connections of the older generation may still be closing."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    return socket.create_server(address, family=family, backlog=_BACKLOG)
