"""Bytes through the node's InfiniBand and RoCE ports. From the counters under /sys; nothing is sent.

They count for the whole node, not for a rank, so they are evidence and no sign of life of a rank. The state and the
error counters of ports are a sense of the node, not a load: see `probes.node`.
"""

from pathlib import Path

from everstep.linux import infiniband

_WORD_BYTES = 4  # port_xmit_data and port_rcv_data count in words of four bytes (IBTA)


def port_bytes(root: Path = Path("/")) -> dict[str, int]:
    """Bytes sent and received so far by port ("mlx5_0/1"). Empty without such a device; a port with unreadable counters
    is left out."""
    found: dict[str, int] = {}
    for port in infiniband.ports(root / infiniband.BASE.lstrip("/")):
        sent, received = (port.counter(name) for name in ("port_xmit_data", "port_rcv_data"))
        if sent is not None and received is not None:
            found[port.name] = (sent + received) * _WORD_BYTES
    return found
