"""The counters of each network interface: one question to the kernel, where /sys has a file for each number. Of the
network namespace of this thread, while /sys shows the one in which it was mounted."""

import struct

from everstep.linux.netlink import attributes, listed

_MESSAGE = struct.Struct("=BxHiII")  # ifinfomsg: family, type, index, flags, change
_GET = 18
_NAME, _STATS = 3, 23  # IFLA_IFNAME, IFLA_STATS64
_NAMES = (
    *("rx_packets", "tx_packets", "rx_bytes", "tx_bytes", "rx_errors", "tx_errors", "rx_dropped", "tx_dropped"),
    *("multicast", "collisions", "rx_length_errors", "rx_over_errors", "rx_crc_errors", "rx_frame_errors"),
    *("rx_fifo_errors", "rx_missed_errors", "tx_aborted_errors", "tx_carrier_errors", "tx_fifo_errors"),
    *("tx_heartbeat_errors", "tx_window_errors", "rx_compressed", "tx_compressed", "rx_nohandler"),
)
"""In the order of rtnl_link_stats64; later kernels add more at its end."""


def interface_counters() -> dict[str, dict[str, int]]:
    """By interface, under the names that /sys has. Empty: not known."""
    found: dict[str, dict[str, int]] = {}
    try:
        for body in listed(_GET, _MESSAGE.pack(0, 0, 0, 0, 0)):
            values = dict(attributes(body[_MESSAGE.size :]))
            stats = values.get(_STATS, b"")
            numbers = struct.unpack_from(f"={len(stats) // 8}Q", stats)
            if not numbers:
                continue  # a kernel that does not provide them here
            found[values[_NAME].rstrip(b"\0").decode()] = dict(zip(_NAMES, numbers, strict=False))
    except (OSError, struct.error, KeyError, UnicodeDecodeError):
        return {}
    return found
