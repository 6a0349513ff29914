"""Ports that counted something, beside those that a topology has: what has another name there counts for nothing."""

from collections.abc import Iterable

from everstep.fabric.locate.observations import Counted
from everstep.fabric.topology.values import Topology

_MOST = 8


def strangers(counted: Iterable[Counted], topology: Topology) -> list[str]:
    """Of each node of which no port is one of the topology's cables, why; some of them, if there are many."""
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
