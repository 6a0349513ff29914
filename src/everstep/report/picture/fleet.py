"""Machines by rack, a letter each: 12,500 of them are one screen. Pure."""

from collections import Counter, defaultdict

from everstep.journal.view import NodeView, RunView
from everstep.report.picture.schema import FleetRow, Health

CHUNK = 64
"""Machines of an unknown rack that are shown together."""


def fleet_rows(view: RunView) -> dict[str, FleetRow]:
    """By a key that stays: the rack's name, or a number."""
    racks: defaultdict[str, list[NodeView]] = defaultdict(list)
    number = 0
    for node in view.nodes.values():
        if node.rack:
            racks[node.rack].append(node)
        else:
            racks[f"#{number // CHUNK}"].append(node)
            number += 1
    named, suspect = times_named(view), _suspect(view)
    return {key: _row(view, key, nodes, named, suspect) for key, nodes in racks.items()}


def times_named(view: RunView) -> Counter[str]:
    """How often a machine was named by the verdict of an incident that is no drill."""
    incidents = [i for i in view.incidents.values() if i.drill is None and i.verdict is not None]
    return Counter(i.verdict.node for i in incidents if i.verdict is not None and i.verdict.node)


def health_of(view: RunView, node: NodeView, suspect: str | None) -> Health:
    if node.lost is not None:
        return Health.OUT
    if node.node == suspect:
        return Health.SUSPECT
    if node.slot is not None:
        return Health.ACTIVE
    return Health.STANDBY if view.generations else Health.UNKNOWN


def _suspect(view: RunView) -> str | None:
    incident = view.incident
    return None if incident is None or incident.verdict is None else incident.verdict.node


def _row(view: RunView, key: str, nodes: list[NodeView], named: Counter[str], suspect: str | None) -> FleetRow:
    return FleetRow(
        rack="" if key.startswith("#") else key,
        nodes=tuple(node.node for node in nodes),
        health="".join(health_of(view, node, suspect) for node in nodes),
        incidents={node.node: named[node.node] for node in nodes if node.node in named},
    )
