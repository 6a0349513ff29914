"""The counters of each network interface: one question to the kernel, where /sys has a file for each number. Of the
network namespace of this thread, while /sys shows the one in which it was mounted."""

import socket
import struct
import time
from typing import NamedTuple

from everstep.linux.netlink import attributes, listed

_LINK = struct.Struct("=BxHiII")  # ifinfomsg: family, type, index, flags, change
_GET_LINK = 18
_NAME, _STATS = 3, 23  # IFLA_IFNAME, IFLA_STATS64
_ONLY_STATS = struct.Struct("=BxxxiI")  # if_stats_msg: family, index, filter
_GET_STATS = 94
_STATS_ONLY = 1  # IFLA_STATS_LINK_64, and its bit in the filter
_NAMES = (
    *("rx_packets", "tx_packets", "rx_bytes", "tx_bytes", "rx_errors", "tx_errors", "rx_dropped", "tx_dropped"),
    *("multicast", "collisions", "rx_length_errors", "rx_over_errors", "rx_crc_errors", "rx_frame_errors"),
    *("rx_fifo_errors", "rx_missed_errors", "tx_aborted_errors", "tx_carrier_errors", "tx_fifo_errors"),
    *("tx_heartbeat_errors", "tx_window_errors", "rx_compressed", "tx_compressed", "rx_nohandler"),
)
"""In the order of rtnl_link_stats64; later kernels add more at its end."""


class Taken(NamedTuple):
    """When something was counted, on the monotonic clock: not before, not after."""

    begin: float
    end: float


class Interfaces(NamedTuple):
    counters: dict[str, dict[str, int]]  # by interface, under the names that /sys has
    taken: Taken


def read_interfaces() -> Interfaces:
    """Without counters: not known."""
    begin = time.monotonic()
    for ask in (_stats, _links):
        try:
            found = ask()
        except (OSError, struct.error, KeyError, UnicodeDecodeError):
            found = {}
        if found:
            return Interfaces(found, Taken(begin, time.monotonic()))
        begin = time.monotonic()
    return Interfaces({}, Taken(begin, begin))


def _stats() -> dict[str, dict[str, int]]:
    """Since Linux 4.7: the counters and nothing else, which costs a third."""
    found = {}
    for body in listed(_GET_STATS, _ONLY_STATS.pack(0, 0, _STATS_ONLY)):
        _, index, _ = _ONLY_STATS.unpack_from(body)
        for kind, stats in attributes(body[_ONLY_STATS.size :]):
            if kind == _STATS_ONLY:
                found[index] = _numbers(stats)
    return {socket.if_indextoname(index): counters for index, counters in found.items()}


def _links() -> dict[str, dict[str, int]]:
    found = {}
    for body in listed(_GET_LINK, _LINK.pack(0, 0, 0, 0, 0)):
        values = dict(attributes(body[_LINK.size :]))
        if counters := _numbers(values.get(_STATS, b"")):  # a kernel may not provide them here
            found[values[_NAME].rstrip(b"\0").decode()] = counters
    return found


def _numbers(stats: bytes) -> dict[str, int]:
    return dict(zip(_NAMES, struct.unpack_from(f"={len(stats) // 8}Q", stats), strict=False))
