"""A switch, and every node on a cable of its own: each in a network namespace without a name.

The switch is a bridge in a namespace that exists only as the launcher's thread and the sockets made there; a node's
namespace exists only as the node's processes. So nothing of it is ever seen in `ip link` or `ip netns`, no address can
collide with one of the machine, nothing outside can reach it, and whatever dies, nothing is left: the kernel removes a
namespace with the last process and socket in it, and a cable with either of its ends.

The other side of that: a node reaches nothing but the switch, so no registry, object store or tracker beyond it.
Needs CAP_SYS_ADMIN and CAP_NET_ADMIN (root). Used by the launcher; nothing here waits for a node.
"""

import ctypes
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from everstep.engines.network.netlink import Netlink, is_gone
from everstep.engines.network.protocol import NetworkError, Plug

T = TypeVar("T")
_CLONE_NEWNET = 0x40000000
_BRIDGE = "everstep"
INTERFACE = "eth0"
"""What a node's end of the cable is called."""

_PREFIX = 16
_NET = "10.77"
"""Only the nodes and the switch see it, so any will do."""

_BACKLOG = 2048
_MAX_NODES = 60_000


class Namespaces:
    """A `Network`. Its switch is in the one thread of `_inside`."""

    host = f"{_NET}.0.1"

    def __init__(self) -> None:
        """Raises NetworkError when the user may not, or the kernel cannot."""
        self._inside = ThreadPoolExecutor(1, thread_name_prefix="everstep-switch")
        self._links: dict[str, str] = {}  # node -> the switch's end of its cable
        self._num_plugged = 0
        try:
            self._netlink, self._bridge = self._inside.submit(_make_switch, self.host).result()
        except OSError as error:
            self._inside.shutdown(wait=False)
            raise NetworkError(
                f"--network namespaces: no network namespace can be made here ({error.strerror}); it needs root with "
                "CAP_SYS_ADMIN and CAP_NET_ADMIN, and a kernel with veth and bridge. Use --network loopback"
            ) from error

    def call(self, make: Callable[[], T]) -> T:
        return self._inside.submit(make).result()

    def listen(self) -> socket.socket:
        return self.call(lambda: socket.create_server((self.host, 0), backlog=_BACKLOG))

    def plug(self, node: str) -> Plug:
        self._num_plugged += 1
        number = self._num_plugged + 1  # the switch is .0.1
        address, link = f"{_NET}.{number >> 8}.{number & 255}", f"v{self._num_plugged}"
        try:
            if number > _MAX_NODES:
                raise OSError(0, f"more than {_MAX_NODES} nodes in the life of one launcher")
            namespace = self._connect(link, address)
        except OSError as error:
            raise NetworkError(f"no network for {node}: {error.strerror}") from error
        self._links[node] = link
        return Plug(address=address, namespace_fd=namespace)

    def unplug(self, node: str) -> None:
        link = self._links.pop(node, None)
        if link is not None:
            try:
                self._netlink.remove(link)
            except OSError as error:
                if not is_gone(error):  # usual: it went with the node's last process
                    raise NetworkError(f"the cable of {node} stays: {error.strerror}") from error

    def cut(self, node: str, *, is_cut: bool) -> None:
        self._on_link(node, lambda link: self._netlink.set_up(link, up=not is_cut))

    def close(self) -> None:
        self._netlink.close()
        self._inside.shutdown(wait=False)

    def _connect(self, link: str, address: str) -> int:
        """A new namespace on a new cable. The thread that makes it is unusable afterwards."""
        with ThreadPoolExecutor(1, thread_name_prefix="everstep-namespace") as there:
            namespace, far = there.submit(_make_namespace).result()
            try:
                self._netlink.add_cable(link, INTERFACE, namespace)
                self._netlink.plug(link, self._bridge)
                self._netlink.set_up(link)
                far.set_up("lo")
                far.add_address(there.submit(socket.if_nametoindex, INTERFACE).result(), address, _PREFIX)
                far.set_up(INTERFACE)
            except BaseException:
                os.close(namespace)
                raise
            finally:
                far.close()
        return namespace

    def _on_link(self, node: str, do: Callable[[str], None]) -> None:
        link = self._links.get(node)
        if link is None:
            raise NetworkError(f"there is no node {node}")
        try:
            do(link)
        except OSError as error:
            raise NetworkError(f"the cable of {node}: {error.strerror}") from error


def enter(namespace_fd: int) -> None:
    """This thread, and what it starts, live there from now on. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace_fd, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _leave_for_a_new_one() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _make_switch(host: str) -> tuple[Netlink, int]:
    _leave_for_a_new_one()
    netlink = Netlink()
    netlink.set_up("lo")
    netlink.add_bridge(_BRIDGE)
    bridge = socket.if_nametoindex(_BRIDGE)
    netlink.add_address(bridge, host, _PREFIX)
    netlink.set_up(_BRIDGE)
    return netlink, bridge


def _make_namespace() -> tuple[int, Netlink]:
    _leave_for_a_new_one()
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC), Netlink()
