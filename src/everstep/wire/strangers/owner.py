"""Whose process is at the other end of a connection on this machine: the kernel is asked, for this one socket.

Called at every port of ours for each connection that has proven nothing yet. Some 20 microseconds; `/proc/net/tcp`
would be read whole.
"""

import ipaddress
import socket
import struct

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_REQUEST = struct.Struct("=BBBBI")  # family, protocol, extensions, pad, states
_ID = struct.Struct("!HH16s16s")  # source and destination: ports, addresses
_UID_AT = _HEADER.size + 4 + 48 + 4 * 3  # behind the header, four bytes, the socket's id and three numbers


class Owners:
    """Asks with one socket of its own, made at the first question. `close` it."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._is_opened = False

    def _open(self) -> socket.socket | None:
        if not self._is_opened:
            self._is_opened = True
            try:
                flags = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
                self._socket = socket.socket(socket.AF_NETLINK, flags, _NETLINK_SOCK_DIAG)
                self._socket.settimeout(0.2)
            except OSError:
                pass  # a sandbox without it: all users are unknown
        return self._socket

    def who(self, peer: object, here: object) -> int | str | None:
        """The user, if the other end is on this machine; else its address, for IPv6 the network of 64 bits (one owner
        has all of its addresses). None: not known."""
        try:
            there, own = (_address(one) for one in (peer, here))
        except (ValueError, TypeError, IndexError):
            return None
        if there == own or own.is_loopback:
            return self.uid(peer, here)
        return str(there) if there.version == 4 else str(ipaddress.ip_network((int(there), 64), strict=False))

    def uid(self, peer: object, here: object) -> int | None:
        """The user of the process at `peer` that is connected to `here`, both as (host, port, ...); None: not known."""
        asking = self._open()
        if asking is None:
            return None
        try:
            family, source, destination = _packed(peer, here)
            port, other = int(peer[1]), int(here[1])  # type: ignore[index]  # _packed has looked
            body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
            body += _ID.pack(port, other, source, destination) + struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
            head = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
            asking.send(head + body)
            answer = asking.recv(4096)
        except (OSError, ValueError, TypeError, IndexError, struct.error):
            return None
        if len(answer) < _UID_AT + 8 or _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
            return None  # an error: it is gone, or lives in another network
        if _ID.unpack_from(answer, _HEADER.size + 4)[:2] != (port, other):
            return None
        uid, inode = struct.unpack_from("=II", answer, _UID_AT)
        return int(uid) if inode else None  # a socket that its process has closed is said to be root's

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _address(of: object) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The address in a socket's name as (host, port, ...). Raises ValueError, TypeError, IndexError."""
    if not isinstance(of, tuple):
        raise TypeError("not the address of a socket")
    found = ipaddress.ip_address(str(of[0]).partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def _packed(peer: object, here: object) -> tuple[int, bytes, bytes]:
    """(family, addresses). Raises ValueError, TypeError."""
    if not isinstance(peer, tuple) or not isinstance(here, tuple):
        raise TypeError("not addresses of a socket")
    addresses = [ipaddress.ip_address(str(one[0]).partition("%")[0]) for one in (peer, here)]
    family = socket.AF_INET if addresses[0].version == 4 else socket.AF_INET6
    return family, *(address.packed.ljust(16, b"\0") for address in addresses)  # type: ignore[return-value]
