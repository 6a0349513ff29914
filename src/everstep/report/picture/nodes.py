"""One machine: what it does in this run, and what it was named for. Pure."""

import msgspec

from everstep.journal.view import NodeView, RunView
from everstep.report.parts.commands import command
from everstep.report.picture.fleet import health_of
from everstep.report.picture.incidents import incident_row
from everstep.report.picture.schema import Health, IncidentRow


class NodePage(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    host: str
    pid: int
    rack: str
    health: Health
    slot: int | None
    joined_at: float
    lost_at: float | None
    lost_why: str
    ranks: tuple[int, ...]
    restarts: str  # why its ranks would start cold; empty: warm, or not known
    drained: str  # who drains it, and why
    incidents: tuple[IncidentRow, ...]
    commands: tuple[str, ...]


def node_page(view: RunView, name: str) -> NodePage | None:
    node, generation, open_incident = view.nodes.get(name), view.generation, view.incident
    if node is None:
        return None
    suspect = open_incident.verdict.node if open_incident is not None and open_incident.verdict is not None else None
    named = [i for i in view.incidents.values() if i.verdict is not None and i.verdict.node == name]
    node_of = generation.node_of if generation is not None else {}
    cold = node.template.why if node.template is not None and not node.template.usable else ""
    return NodePage(
        node=name,
        host=node.host,
        pid=node.pid,
        rack=node.rack,
        health=health_of(view, node, suspect),
        slot=node.slot,
        joined_at=node.joined_at,
        lost_at=None if node.lost is None else node.lost.at,
        lost_why="" if node.lost is None else node.lost.reason,
        ranks=tuple(sorted(rank for rank, where in node_of.items() if where == name)),
        restarts=cold,
        drained=node.drained,
        incidents=tuple(incident_row(view, incident) for incident in reversed(named)),
        commands=_commands(node),
    )


def _commands(node: NodeView) -> tuple[str, ...]:
    """List the commands that an operator may want next."""
    memory = (f"everstep node show {node.host}", "everstep node ls")
    if node.lost is not None:
        return memory
    return (*memory, command("drain", node.node, *(("--undo",) if node.drained else ("--why", "TEXT"))))
