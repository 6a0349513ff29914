"""How many packets the kernel's queue of each network interface dropped. Over netlink; needs no rights."""

import socket
import struct
import sys

_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_MESSAGE = struct.Struct("=BxxxiIII")  # tcmsg: family, interface, handle, parent, info
_ATTRIBUTE = struct.Struct("=HH")
_NEW, _GET, _DONE, _ERROR = 36, 38, 3, 2
_REQUEST_DUMP = 0x301
_ROOT = 0xFFFFFFFF
_TCA_STATS = 3
_DROPS_AT = 12  # in tc_stats, after bytes and packets
_LIMIT_S = 1.0


def root_drops() -> dict[str, int]:
    """By interface; of its root queue, with all that hang below. One without a queue, or all if it fails: left out."""
    found: dict[str, int] = {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as link:
            link.settimeout(_LIMIT_S)
            size = _HEADER.size + _MESSAGE.size
            link.send(_HEADER.pack(size, _GET, _REQUEST_DUMP, 1, 0) + _MESSAGE.pack(0, 0, 0, 0, 0))
            while _take(link.recv(1 << 18), found):
                pass
    except (OSError, struct.error):
        return {}
    return found


def _take(data: bytes, found: dict[str, int]) -> bool:
    """Whether more is to come."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, at)
        if kind in (_DONE, _ERROR) or length < _HEADER.size:
            return False
        if kind == _NEW:
            body = data[at + _HEADER.size : at + length]
            _, interface, _, parent, _ = _MESSAGE.unpack_from(body)
            drops = _drops(body[_MESSAGE.size :])
            if parent == _ROOT and drops is not None:
                found[socket.if_indextoname(interface)] = drops
        at += (length + 3) & ~3
    return at > 0


def _drops(attributes: bytes) -> int | None:
    at = 0
    while at + _ATTRIBUTE.size <= len(attributes):
        length, kind = _ATTRIBUTE.unpack_from(attributes, at)
        if length < _ATTRIBUTE.size:
            return None
        if kind == _TCA_STATS and length >= _ATTRIBUTE.size + _DROPS_AT + 4:
            return int.from_bytes(attributes[at + _ATTRIBUTE.size + _DROPS_AT :][:4], sys.byteorder)
        at += (length + 3) & ~3
    return None
