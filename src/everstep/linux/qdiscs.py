"""How many packets the kernel's queue of each network interface dropped."""

import socket
import struct
import sys

from everstep.linux.netlink import attributes, listed

_MESSAGE = struct.Struct("=BxxxiIII")  # tcmsg: family, interface, handle, parent, info
_GET = 38
_ROOT = 0xFFFFFFFF
_TCA_STATS = 3
_DROPS = slice(12, 16)  # in tc_stats, after bytes and packets


def root_drops() -> dict[str, int]:
    """By interface; of its root queue, with all that hang below. One without a queue, or all if it fails: left out."""
    found: dict[str, int] = {}
    try:
        for body in listed(_GET, _MESSAGE.pack(0, 0, 0, 0, 0)):
            _, interface, _, parent, _ = _MESSAGE.unpack_from(body)
            stats = dict(attributes(body[_MESSAGE.size :])).get(_TCA_STATS, b"")
            if parent == _ROOT and len(stats) >= _DROPS.stop:
                found[socket.if_indextoname(interface)] = int.from_bytes(stats[_DROPS], sys.byteorder)
    except (OSError, struct.error):
        return {}
    return found
