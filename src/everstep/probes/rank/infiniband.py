"""How many bytes went through the node's InfiniBand and RoCE ports. From the counters under /sys; nothing is sent.

They count for the whole node: which rank it was they do not tell, so they are evidence and no sign of life of a rank.
The state and the error counters of ports are a sense of the node, not a load: see `probes.node`.
"""

from pathlib import Path

_WORD_BYTES = 4  # port_xmit_data and port_rcv_data count in words of four bytes (IBTA)


def port_bytes(root: Path = Path("/")) -> dict[str, int]:
    """Sent and received so far by port ("mlx5_0/1"). Empty where there is no such device; a port whose counters cannot
    be read is left out."""
    folder = root / "sys/class/infiniband"
    found: dict[str, int] = {}
    try:
        ports = sorted(folder.glob("*/ports/*"))
    except OSError:
        return found
    for port in ports:
        try:
            words = [int((port / "counters" / name).read_text()) for name in ("port_xmit_data", "port_rcv_data")]
        except (OSError, ValueError):
            continue
        found[f"{port.parent.parent.name}/{port.name}"] = sum(words) * _WORD_BYTES
    return found
