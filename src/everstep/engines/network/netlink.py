"""The few requests to the kernel's routing socket that a switch and its cables need. Linux only, needs CAP_NET_ADMIN.

A socket speaks for the network namespace in which it was made, whichever thread uses it later. No program (`ip`)
is run, because the launcher waits for all children of its process. Numbers from linux/{netlink,rtnetlink,if_link}.h.
"""

import errno
import itertools
import os
import socket
import struct

_NEWLINK, _DELLINK, _NEWADDR = 16, 17, 20
_REQUEST, _ACK, _EXCLUSIVE, _CREATE = 0x1, 0x4, 0x200, 0x400
_ERROR = 2
_HARDWARE, _IFNAME, _MASTER, _LINKINFO, _NET_NS_FD = 1, 3, 10, 18, 28
_LOCALLY_GIVEN = b"\x02"  # first byte of a hardware address that no maker gave
_INFO_KIND, _INFO_DATA, _VETH_PEER = 1, 2, 1
_LOCAL, _ADDRESS = 2, 1
_UP = 1
_TIMEOUT_S = 5.0


class Netlink:
    """One socket. All methods raise OSError with what the kernel says."""

    def __init__(self) -> None:
        """Open the calling thread's network namespace."""
        self._sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)  # NETLINK_ROUTE
        self._sock.settimeout(_TIMEOUT_S)
        self._numbers = itertools.count(1)

    def close(self) -> None:
        self._sock.close()

    def add_bridge(self, name: str) -> None:
        """With a hardware address of its own: else it takes the lowest of its ports, and changes it, unknown to those
        who have learnt it, when that one is unplugged."""
        own = _attribute(_HARDWARE, _LOCALLY_GIVEN + os.urandom(5))
        self._ask(_NEWLINK, _CREATE | _EXCLUSIVE, _link() + _text(_IFNAME, name) + own + _kind("bridge"))

    def add_cable(self, name: str, far: str, far_namespace: int) -> None:
        """A veth pair: `name` here, `far` in the namespace of that descriptor."""
        peer = _link() + _text(_IFNAME, far) + _attribute(_NET_NS_FD, struct.pack("=I", far_namespace))
        data = _attribute(_INFO_DATA, _attribute(_VETH_PEER, peer))
        self._ask(_NEWLINK, _CREATE | _EXCLUSIVE, _link() + _text(_IFNAME, name) + _kind("veth", data))

    def remove(self, name: str) -> None:
        self._ask(_DELLINK, 0, _link() + _text(_IFNAME, name))

    def set_up(self, name: str, *, up: bool = True) -> None:
        self._ask(_NEWLINK, 0, _link(flags=_UP if up else 0, change=_UP) + _text(_IFNAME, name))

    def plug(self, name: str, bridge_index: int) -> None:
        self._ask(_NEWLINK, 0, _link() + _text(_IFNAME, name) + _attribute(_MASTER, struct.pack("=I", bridge_index)))

    def add_address(self, index: int, address: str, prefix: int) -> None:
        packed = socket.inet_aton(address)
        head = struct.pack("=BBBBI", socket.AF_INET, prefix, 0, 0, index)
        self._ask(_NEWADDR, _CREATE | _EXCLUSIVE, head + _attribute(_LOCAL, packed) + _attribute(_ADDRESS, packed))

    def _ask(self, kind: int, flags: int, body: bytes) -> None:
        number = next(self._numbers)
        header = struct.pack("=IHHII", 16 + len(body), kind, flags | _REQUEST | _ACK, number, 0)
        self._sock.send(header + body)
        while True:
            data = self._sock.recv(1 << 16)
            _, answer, _, answered, _ = struct.unpack_from("=IHHII", data)
            if answer == _ERROR and answered == number:
                (code,) = struct.unpack_from("=i", data, 16)
                if code:
                    raise OSError(-code, os.strerror(-code))
                return


def is_gone(error: OSError) -> bool:
    return error.errno in (errno.ENODEV, errno.ENOENT)


def _link(*, flags: int = 0, change: int = 0) -> bytes:
    return struct.pack("=BBHiII", socket.AF_UNSPEC, 0, 0, 0, flags, change)


def _kind(name: str, data: bytes = b"") -> bytes:
    return _attribute(_LINKINFO, _text(_INFO_KIND, name) + data)


def _text(kind: int, text: str) -> bytes:
    return _attribute(kind, text.encode() + b"\0")


def _attribute(kind: int, data: bytes) -> bytes:
    size = 4 + len(data)
    return struct.pack("=HH", size, kind) + data + bytes(-size % 4)
