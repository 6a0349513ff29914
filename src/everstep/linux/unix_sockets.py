"""Pairs of sockets within this machine that are the two ends of one connection, asked of the kernel (sock_diag, Linux
3.3).

Only of the network namespace of this thread; a socket of another one is not listed. Reads only; needs no rights.
"""

import socket
import struct

from everstep.linux import netlink

_REQUEST = 20  # SOCK_DIAG_BY_FAMILY
_FAMILY = 4  # NETLINK_SOCK_DIAG
_SHOW_PEER = 4  # UDIAG_SHOW_PEER
_ASKED = struct.Struct("=BBHIIIII")
_ANSWER = struct.Struct("=BBBBIII")  # unix_diag_msg: family, type, state, pad, inode, cookie
_PEER = 2  # UNIX_DIAG_PEER
_ANY = 0xFFFFFFFF
_NUMBER = struct.Struct("=I")


def peers() -> dict[int, int]:
    """Inode of each connected socket to that of its other end. Empty where the kernel does not tell."""
    body = _ASKED.pack(socket.AF_UNIX, 0, 0, _ANY, 0, _SHOW_PEER, _ANY, _ANY)
    found: dict[int, int] = {}
    try:
        for message in netlink.listed(_REQUEST, body, _FAMILY):
            inode = _ANSWER.unpack_from(message)[4]
            for kind, value in netlink.attributes(message[_ANSWER.size :]):
                if kind == _PEER and len(value) >= _NUMBER.size:
                    found[inode] = _NUMBER.unpack_from(value)[0]
    except (OSError, struct.error):
        return {}
    return found
