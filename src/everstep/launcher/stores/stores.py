"""One key-value store per generation, in one process of its own: workers come and go, the store they meet in does not.

A store of its own for every generation means that no key is stale. All of them listen on one socket, which the launcher
keeps: a firewall, a script that was given the port, and a rank that was made ready ahead of time count on it. Ranks
that come before torch is imported there wait in its queue. The older store is closed first; a new one is asked for only
when no rank of the older generation lives. It listens where the nodes are, nowhere else: on loopback, or on a switch
that nothing outside of this machine reaches, or at the address that the user named.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable

from everstep.engines.children import Child, Children, wait_ended
from everstep.engines.network import Network, is_of_its_own
from everstep.errors import ConfigError, EverstepError
from everstep.launcher.arguments import checks
from everstep.launcher.arguments.settings import Settings
from everstep.launcher.stores.store_process import WHOLE
from everstep.linux.children import Ended

_LOOPBACK = ("localhost", "127.0.0.1")
_MAX_MESSAGE = 4096
_END_S = 5.0
CLOSE_LIMIT_S = 10.0
"""A process that has not closed its store by then stands still, and is replaced. It takes milliseconds."""
LOAD_LIMIT_S = 300.0
"""Until torch is loaded, from a cold file server as well. Ranks wait for that in the queue of the socket."""
MAX_LOSSES = 5
"""So many tries, in one process or several, without a store, and the run ends: the next one would not open one."""


class StoresError(EverstepError):
    """The process with the stores does not begin."""


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
    return Stores(first, network, told)


def _addresses(name: str) -> list[str]:
    try:
        return [str(info[4][0]) for info in socket.getaddrinfo(name.strip("[]"), None, type=socket.SOCK_STREAM)]
    except OSError:
        return []


class Stores:
    def __init__(self, listening: socket.socket, network: Network, told_host: str) -> None:
        """`listening`: where ranks come to. `network`: where nodes reach it. `told_host`: the name of its address that
        ranks get."""
        self._listening = listening
        self._network = network
        self._address: tuple[str, int] = listening.getsockname()[:2]
        self._told_host = told_host
        self._generation = -1
        self._num_losses = 0
        self._is_whole = False  # the quick way to torch may be what ended a process
        self._has_served = False
        self._process: _StoreProcess | None = None
        self._turn = asyncio.Lock()

    def prepare(self, children: Children, on_loss: Callable[[int, Exception], None]) -> None:
        """Start the process, which imports torch meanwhile. `on_loss` gets the generation that has no store after all,
        and why: ImportError when torch cannot be imported. Raises OSError."""
        self._children, self._on_loss = children, on_loss
        self._process = self._network.call(lambda: _StoreProcess(children, self._lose, is_whole=self._is_whole))
        asyncio.get_running_loop().add_reader(self._process.socket, self._process.hear)

    async def open(self, generation: int) -> tuple[str, int]:
        """Host and port; the same ones when asked again. Closes the one before. Raises OSError."""
        async with self._turn:
            if generation > self._generation:
                if self._process is None:
                    self.prepare(self._children, self._on_loss)
                assert self._process is not None
                await self._process.open(generation, self._address, self._listening)
                self._generation = generation
        return self._told_host, self._address[1]

    async def end(self) -> None:
        """End at once: the store is not used any more."""
        process, self._process = self._process, None
        if process is not None:
            await process.end()

    def close(self) -> None:
        self._listening.close()

    def _lose(self, process: "_StoreProcess", error: Exception) -> None:
        if process is not self._process:
            return  # it was asked to end
        self._num_losses += 1
        self._has_served |= process.has_served
        if process.has_ended:
            self._process = None
            self._is_whole |= not process.was_killed
        if self._num_losses >= MAX_LOSSES and not self._has_served:
            error = StoresError(f"{error}, {self._num_losses} times, and has never opened one")
        lost = max(self._generation, 0)
        self._generation = lost - 1
        self._on_loss(lost, error)


class _StoreProcess:
    """The process with the stores, seen from the launcher."""

    def __init__(
        self, children: Children, on_loss: Callable[["_StoreProcess", Exception], None], *, is_whole: bool
    ) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.setblocking(False)
        self._on_loss = on_loss
        self._is_loaded = self._stood_still = False
        self._began_at = time.monotonic()
        self._wanted: tuple[int, tuple[str, int], socket.socket] | None = None  # once it is loaded
        self.has_served = False
        self._closed = asyncio.Event()
        argv = [
            sys.executable,
            "-P",
            "-m",
            "everstep.launcher.stores.store_process",
            str(os.getpid()),
            str(theirs.fileno()),
        ]
        argv += [WHOLE] if is_whole else []
        with theirs:
            self._child = children.spawn("stores", argv, on_end=self._on_end, pass_fds=(theirs.fileno(),))

    @property
    def has_ended(self) -> bool:
        return self._child.ended is not None

    @property
    def was_killed(self) -> bool:
        """Whether it was well, and somebody else ended it."""
        ended = self._child.ended
        return self._is_loaded and not self._stood_still and ended is not None and ended.signal == signal.SIGKILL

    async def open(self, generation: int, address: tuple[str, int], listening: socket.socket) -> None:
        """Without waiting while torch is loaded there: it is asked for the newest store only, then, so that none is
        open that could take the new one's ranks. Raises OSError."""
        self._wanted = generation, address, listening
        if self._is_loaded:
            self._ask()
            await self._until_closed()
        elif time.monotonic() - self._began_at > LOAD_LIMIT_S:
            self._give_up(f"did not load torch for {LOAD_LIMIT_S:g} s")

    def _ask(self) -> None:
        if self._wanted is not None:
            generation, (host, port), listening = self._wanted
            self._wanted = None
            self._closed.clear()
            socket.send_fds(self.socket, [f"open {generation} {host} {port}".encode()], [listening.fileno()])

    async def _until_closed(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_LIMIT_S):
                await self._closed.wait()
        except TimeoutError:
            self._give_up(f"did not answer for {CLOSE_LIMIT_S:g} s")
        if self.has_ended:
            raise ConnectionError("the process with the stores has ended")

    def _give_up(self, why: str) -> None:
        """Raises ConnectionError."""
        self._stood_still = True
        self._child.send(signal.SIGKILL)
        raise ConnectionError(f"the process with the stores {why}")

    async def end(self) -> None:
        self._child.send(signal.SIGKILL)
        await wait_ended([self._child], _END_S)

    def hear(self) -> None:
        try:
            message = self.socket.recv(_MAX_MESSAGE).decode(errors="replace")
        except OSError:
            return  # it has ended: `_on_end` says so
        said, _, rest = message.partition(" ")
        if said == "loaded":
            self._is_loaded = True
            with contextlib.suppress(OSError, ValueError):  # it has ended, or the run has
                self._ask()
        elif said == "closed":
            self._closed.set()
        elif said == "opened":
            self.has_served = True
        elif said == "failed":
            self._on_loss(self, RuntimeError(rest))
        elif said == "no-torch":
            self._on_loss(self, ImportError(rest))

    def _on_end(self, child: Child, ended: Ended) -> None:
        self.hear()  # its last word
        asyncio.get_running_loop().remove_reader(self.socket)
        self.socket.close()
        self._closed.set()
        self._on_loss(self, RuntimeError(f"the process with the stores has ended ({ended})"))
