"""Checks a topology: settings that differ, cables in the wrong place, too little bandwidth upwards.

`unknown` counts the settings that are unknown and so were not checked.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator

import msgspec

from everstep.fabric.topology.graph import Graph
from everstep.fabric.topology.values import Cable, Port, Switch, Topology

MAX_OVERSUBSCRIPTION = 1.0
_TOLERANCE = 1e-6


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    kind: str  # "mtu", "rail", ...
    object: str
    text: str
    is_error: bool = True


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    findings: tuple[Finding, ...]
    unknown: dict[str, int]  # setting -> number of cables that lack it at one end or both
    num_cables: int = 0

    @property
    def is_fit(self) -> bool:
        return not any(finding.is_error for finding in self.findings)


_SETTINGS: dict[str, Callable[[Port], Hashable]] = {
    "speed": lambda port: port.bps,
    "mtu": lambda port: port.mtu,
    "duplex": lambda port: port.duplex,
    "pfc": lambda port: port.lossless,
    "ecn": lambda port: port.ecn,
}


def check_topology(topology: Topology, *, oversubscription: float = MAX_OVERSUBSCRIPTION) -> Checked:
    """Check one topology. Raises FabricError for an impossible one (`check_whole`)."""
    graph = Graph(topology)
    findings = [
        *_ends(topology),
        *_odd_settings(topology),
        *_down(topology),
        *_rails(topology),
        *_uneven(graph),
        *_parts(graph),
        *_sideways(graph),
        *_oversubscribed(graph, oversubscription),
    ]
    return Checked(findings=tuple(findings), unknown=_unknown(topology), num_cables=len(topology.cables))


def compare(found: Topology, blueprint: Topology) -> list[Finding]:
    """Differences from the cables of the blueprint. Ports without a name are compared by node only."""
    missing, extra = _keys(blueprint), _keys(found)
    both = missing & extra
    missing, extra = missing - both, extra - both
    findings = []
    for one, other in sorted(missing.elements()):
        instead = [pair for pair in extra if one in pair or other in pair]
        cause = f"found {' - '.join(min(instead))} instead" if instead else "not found"
        findings.append(Finding(kind="cabling", object=f"{one} - {other}", text=f"in the blueprint, {cause}"))
    named = {end for pair in missing for end in pair}
    for pair in sorted(extra.elements()):
        if not named & set(pair):
            findings.append(Finding(kind="cabling", object=" - ".join(pair), text="not in the blueprint"))
    return findings


def _keys(topology: Topology) -> "Counter[tuple[str, str]]":
    found: Counter[tuple[str, str]] = Counter()
    for cable in topology.cables:
        one, other = sorted((cable.one.label, cable.other.label))
        found[one, other] += 1
    return found


def _unknown(topology: Topology) -> dict[str, int]:
    counts = {
        name: sum(read(cable.one) is None or read(cable.other) is None for cable in topology.cables)
        for name, read in _SETTINGS.items()
    }
    return {name: count for name, count in counts.items() if count}


def _ends(topology: Topology) -> Iterator[Finding]:
    """Cables with different settings at their two ends."""
    for cable in topology.cables:
        for name, read in _SETTINGS.items():
            one, other = read(cable.one), read(cable.other)
            if one is not None and other is not None and one != other:
                ends = f"{cable.one.label} has {_shown(name, one)}, {cable.other.label} has {_shown(name, other)}"
                yield Finding(kind=name, object=cable.label, text=ends)
        if "half" in (cable.one.duplex, cable.other.duplex):
            yield Finding(kind="duplex", object=cable.label, text="half duplex: sends or receives, never both")


def _odd_settings(topology: Topology) -> Iterator[Finding]:
    """Cables with equal ends that differ from most cables between the same two tiers."""
    tiers = _tiers(topology)
    for name, read in _SETTINGS.items():
        kinds: dict[Hashable, dict[Hashable, list[Cable]]] = defaultdict(lambda: defaultdict(list))
        for cable in topology.cables:
            if (value := read(cable.one)) is not None and value == read(cable.other):
                kinds[tuple(sorted((tiers[cable.one.node], tiers[cable.other.node])))][value].append(cable)
        for groups in kinds.values():
            usual = max(groups, key=lambda value: len(groups[value]))
            for value, cables in groups.items():
                if value == usual or len(cables) * 2 >= len(groups[usual]):
                    continue
                for cable in cables:
                    text = f"{_shown(name, value)}, where {len(groups[usual])} cables have {_shown(name, usual)}"
                    yield Finding(kind=name, object=cable.label, text=text)


def _tiers(topology: Topology) -> dict[str, int]:
    graph = Graph(topology)
    return dict(zip(graph.names, graph.tiers, strict=True))


def _down(topology: Topology) -> Iterator[Finding]:
    for cable in topology.cables:
        for end in (cable.one, cable.other):
            if end.is_up is False:
                yield Finding(kind="down", object=cable.label, text=f"{end.label} is down")
    for host in topology.hosts:
        for nic in host.nics:
            if nic.is_up is False:
                yield Finding(kind="down", object=nic.label, text="the NIC is down", is_error=False)


def _rails(topology: Topology) -> Iterator[Finding]:
    """NICs on a leaf of another rail. A leaf's rail is stated in the topology, else it is that of most of its NICs."""
    switches = {switch.name: switch for switch in topology.switches}
    on_leaf: dict[str, list[tuple[Port, Cable]]] = defaultdict(list)
    rails = {(nic.node, nic.name): nic.rail for host in topology.hosts for nic in host.nics}
    for cable in topology.cables:
        for near, far in ((cable.one, cable.other), (cable.other, cable.one)):
            if near.node in switches and far.node not in switches:
                rail = far.rail if far.rail is not None else rails.get((far.node, far.name))
                if rail is not None:
                    on_leaf[near.node].append((msgspec.structs.replace(far, rail=rail), cable))
    for leaf, nics in on_leaf.items():
        rail = _rail_of(switches[leaf], [nic.rail for nic, _ in nics])
        for nic, cable in nics:
            if rail is not None and nic.rail != rail:
                yield Finding(kind="rail", object=cable.label, text=f"NIC of rail {nic.rail} on a leaf of rail {rail}")


def _rail_of(switch: Switch, rails: list[int | None]) -> int | None:
    """None: the leaf serves several rails, as a top-of-rack switch does."""
    if switch.rail is not None:
        return switch.rail
    ((rail, count), *_) = Counter(rails).most_common(1)
    return rail if count * 4 >= len(rails) * 3 and count >= 3 else None


def _uneven(graph: Graph) -> Iterator[Finding]:
    """Switches and hosts with fewer cables upwards than most nodes of their tier."""
    kinds: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for node in range(len(graph.names)):
        if graph.tiers[node] < graph.num_tiers:
            up = sum(graph.tiers[other] > graph.tiers[node] for other, _ in graph.neighbours[node])
            kinds[graph.tiers[node]][up].append(node)
    for groups in kinds.values():
        usual = max(groups, key=lambda up: len(groups[up]))
        for up, nodes in groups.items():
            if up < usual and len(nodes) * 2 < len(groups[usual]):
                for node in nodes:
                    text = f"{up} working cables upwards, where {len(groups[usual])} of its tier have {usual}"
                    yield Finding(kind="cabling", object=graph.names[node], text=text)


def _parts(graph: Graph) -> Iterator[Finding]:
    """Hosts without a path to the largest connected part."""
    groups = graph.components()[: graph.num_hosts]
    if not groups:
        yield Finding(kind="disconnected", object=graph.topology.source, text="no host in it")
        return
    ((largest, count), *_) = Counter(groups).most_common(1)
    apart = [graph.names[host] for host, group in enumerate(groups) if group != largest]
    if apart:
        some = ", ".join(apart[:4]) + (f" and {len(apart) - 4} more" if len(apart) > 4 else "")
        yield Finding(kind="disconnected", object=some, text=f"no path to the {count} hosts of the largest part")


def _sideways(graph: Graph) -> Iterator[Finding]:
    for cable in graph.cables:
        one, other = graph.index[cable.one.node], graph.index[cable.other.node]
        if graph.tiers[one] == graph.tiers[other]:
            text = f"joins two nodes of tier {graph.tiers[one]}: up-down routing does not use it"
            yield Finding(kind="cabling", object=cable.label, text=text, is_error=False)


def _oversubscribed(graph: Graph, allowed: float) -> Iterator[Finding]:
    """Switches below the top tier with more bandwidth downwards than upwards, beyond the allowed ratio. A switch with
    an unknown speed gives no finding."""
    for node in range(graph.num_hosts, len(graph.names)):
        ratio = oversubscription_of(graph, node)
        if ratio is not None and ratio > allowed + _TOLERANCE:
            text = f"{ratio:.3g}:1 oversubscribed: more comes from below than fits upwards"
            yield Finding(kind="oversubscription", object=graph.names[node], text=text)


def oversubscription_of(graph: Graph, node: int) -> float | None:
    """Speed downwards over speed upwards; None at the top tier, or if a speed is unknown."""
    down = up = 0.0
    for other, number in graph.neighbours[node]:
        bps = graph.cables[number].bps
        if bps is None:
            return None
        if graph.tiers[other] < graph.tiers[node]:
            down += bps
        elif graph.tiers[other] > graph.tiers[node]:
            up += bps
    return down / up if up else None


def _shown(name: str, value: Hashable) -> str:
    if name == "speed" and isinstance(value, float):
        return f"{value / 1e9:g} Gbit/s"
    if isinstance(value, tuple):
        return f"priorities {', '.join(map(str, value))}" if value else "no priority"
    return str(value)
