"""The pages of `everstep fabric show` and `everstep fabric check`."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from everstep.fabric.topology.check import Checked, Finding, oversubscription_of
from everstep.fabric.topology.graph import Graph
from everstep.fabric.topology.values import Cable
from everstep.report.parts.layout import field, table, text_of
from everstep.report.parts.units import count

_MOST = 40
_NAMES = 4


def topology_page(graph: Graph) -> str:
    topology = graph.topology
    head = f"{topology.source}: {_plural(graph.num_hosts, 'host')}, {_plural(len(topology.switches), 'switch')}, "
    lines = [head + _plural(len(topology.cables), "cable"), ""]
    rows = [_tier_row(graph, tier) for tier in range(graph.num_tiers, -1, -1)]
    lines += table(("tier", "nodes", "cables down", "speed", "oversubscribed", "names"), rows)
    lines += ["", *_groups(graph)]
    nics = [nic for host in topology.hosts for nic in host.nics]
    if nics and not topology.cables:
        lines += ["", *_nics(graph)]
    return text_of(lines)


def _tier_row(graph: Graph, tier: int) -> tuple[str, ...]:
    nodes = [node for node, its in enumerate(graph.tiers) if its == tier]
    names = [graph.names[node] for node in nodes]
    if tier == 0:
        return ("hosts", count(len(nodes)), "", "", "", _some(names))
    below = [
        graph.cables[number]
        for node in nodes
        for other, number in graph.neighbours[node]
        if graph.tiers[other] < graph.tiers[node]
    ]
    ratios = {ratio for node in nodes if (ratio := oversubscription_of(graph, node)) is not None}
    shown = "" if tier == graph.num_tiers else ", ".join(f"{each:.3g}:1" for each in sorted(ratios)[:3]) or "not known"
    return (str(tier), count(len(nodes)), count(len(below)), speeds(below), shown, _some(names))


def speeds(cables: Sequence[Cable]) -> str:
    found = Counter(cable.bps for cable in cables)
    return ", ".join(speed(bps) for bps, _ in found.most_common(3))


def speed(bps: float | None) -> str:
    return "not known" if bps is None else f"{bps / 1e9:.4g} Gbit/s"


def _groups(graph: Graph) -> list[str]:
    """How many groups each level has, and how large they are."""
    if not graph.num_hosts or not graph.levels[0]:
        return []
    lines: list[str] = []
    for level, name in enumerate(graph.level_names):
        sizes = Counter(Counter(path[level] for path in graph.levels).values())
        text = ", ".join(f"{number} of {_plural(size, 'host')}" for size, number in sorted(sizes.items())[:6])
        lines += field(name, text, width=22)
    return lines


def _nics(graph: Graph) -> list[str]:
    rows = [
        (nic.label, "" if nic.rail is None else str(nic.rail), speed(nic.bps), _known(nic.mtu), _known(nic.duplex))
        for host in graph.topology.hosts
        for nic in host.nics[:_MOST]
    ]
    return table(("NIC", "rail", "speed", "MTU", "duplex"), rows)


def _known(value: object) -> str:
    return "not known" if value is None else str(value)


def checked_page(source: str, checked: Checked, extra: Sequence[Finding]) -> str:
    findings = [*extra, *checked.findings]
    errors = sum(finding.is_error for finding in findings)
    nothing = "nothing wrong found" if checked.num_cables else "no cable is known, so nothing could be compared"
    head = f"{source}: {_plural(errors, 'fault')}" if findings else f"{source}: {nothing}"
    if len(findings) > errors:
        head += f", {_plural(len(findings) - errors, 'note')}"
    lines = [head, ""]
    kinds: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        kinds[finding.kind].append(finding)
    for kind, found in kinds.items():
        for finding in found[:_MOST]:
            lines += field(kind, f"{finding.object}: {finding.text}", width=18)
        if len(found) > _MOST:
            lines += field("", f"and {len(found) - _MOST} more", width=18)
    for name, number in checked.unknown.items():
        lines += field("not checked", f"{name}: not known of {_plural(number, 'cable')}", width=18)
    return text_of(lines)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMES])
    return shown if len(names) <= _NAMES else f"{shown}, ... {names[-1]}"


def _plural(number: int, noun: str) -> str:
    ending = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count(number)} {noun}{ending}"
