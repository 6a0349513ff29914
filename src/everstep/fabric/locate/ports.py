"""Checks port counters against the topology: a port that it does not name, or with more than its cable carries, counts
for nothing."""

from collections.abc import Iterable

from everstep.fabric.locate.observations import Counted
from everstep.fabric.topology.values import Topology

_MOST = 8
_IMPOSSIBLE = 10.0
"""Multiple of the capacity. Above it a counter wrapped or lies, or the speed is not the cable's. It is large because a
busy machine reads its ports late, and a window then holds more than its seconds."""


def is_impossible(num_bytes: int, seconds: float, bps: float) -> bool:
    return not 0 <= 8 * num_bytes <= _IMPOSSIBLE * bps * seconds


def is_impossible_rate(bps: float, capacity_bps: float) -> bool:
    """Whether a port cannot have this rate. It would count as full, and that would excuse losses of its cable."""
    return not 0 <= bps <= _IMPOSSIBLE * capacity_bps


def impossible(counted: Iterable[Counted], topology: Topology) -> list[str]:
    """A message for each port that reports more traffic than its cable can carry; if many, for some of them."""
    speeds = {(end.node, end.name): cable.bps for cable in topology.cables for end in (cable.one, cable.other)}
    found: dict[str, str] = {}
    for each in counted:
        bps = speeds.get((each.node, each.nic))
        for name in ("tx_bytes", "rx_bytes"):
            grown = each.grown.get(name)
            if bps is not None and grown is not None and is_impossible(grown, each.seconds, bps):
                port = f"{each.node}:{each.nic}"
                found[port] = f"{port}: {name} grew by {grown} in {each.seconds:g} s, which its cable cannot carry"
    said = list(found.values())
    return said[:_MOST] + ([f"{len(said) - _MOST} ports more, of the same kind"] if len(said) > _MOST else [])


def strangers(counted: Iterable[Counted], topology: Topology) -> list[str]:
    """A message for each node without a port on a cable of the topology, with the reason; if many, for some of them."""
    ports: dict[str, set[str]] = {}
    for cable in topology.cables:
        for end in (cable.one, cable.other):
            ports.setdefault(end.node, set()).add(end.name)
    seen: dict[str, set[str]] = {}
    for each in counted:
        seen.setdefault(each.node, set()).add(each.nic)
    found = [_why(node, names, ports.get(node), topology) for node, names in sorted(seen.items())]
    said = [text for text in found if text]
    more = [f"ports of {len(said) - _MOST} nodes more"] if len(said) > _MOST else []
    return said[:_MOST] + more


def _why(node: str, counts: set[str], has: set[str] | None, topology: Topology) -> str:
    if has is None:
        return f"{node}: it has no cable in {topology.source}. Name it as there (`everstep fabric counters --node`)"
    if counts & has:
        return ""
    if has == {""}:
        return f"{node}: {topology.source} does not name its ports, so their counters belong to no cable"
    return f"{node}: counts {_some(counts)}, but its cables are on {_some(has)} in {topology.source}"


def _some(names: set[str]) -> str:
    listed = sorted(name for name in names if name)
    return ", ".join(listed[:4]) + (f" and {len(listed) - 4} more" if len(listed) > 4 else "")
