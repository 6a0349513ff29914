"""Copies of a topology with broken parts."""

from collections.abc import Sequence

from msgspec.structs import replace

from everstep.fabric.topology.values import Cable, FabricError, Topology


def without(topology: Topology, names: Sequence[str]) -> Topology:
    """The topology with these parts down. `names`: switches, hosts, ports (`n0:nic3`), cables (`leaf0 - spine1`) or
    fate-sharing groups; all their cables go down. Raises FabricError for an unknown name."""
    broken: set[str] = set()
    for name in names:
        broken |= set(topology.fates.get(name, (name,)))
    found: set[str] = set()
    cables = []
    for cable in topology.cables:
        here = {cable.one.node, cable.other.node, *_labels(cable)} & broken
        found |= here
        cables.append(replace(cable, one=replace(cable.one, is_up=False)) if here else cable)
    if missing := sorted(broken - found):
        raise FabricError(
            f"{topology.source}: cannot break {missing[0]!r}: no switch, host, port or cable has that name"
        )
    return replace(topology, cables=tuple(cables))


def _labels(cable: Cable) -> set[str]:
    one, other = cable.one, cable.other
    ways = {f"{one.label} - {other.label}", f"{other.label} - {one.label}"}
    return ways | {f"{one.node} - {other.node}", f"{other.node} - {one.node}"} | {
        end.label for end in (one, other) if end.name
    }  # fmt: skip
