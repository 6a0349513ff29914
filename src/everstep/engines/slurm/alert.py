"""What the run is told when an administrator drains a node: the same as when a machine reports itself unfit."""

from everstep.knowledge.node_codes import SENSED
from everstep.model.facts import Alert

CODE = "ES-M39"


def drained(at: float, reason: str) -> Alert:
    sensed = SENSED[CODE]
    return Alert(
        at=at,
        code=CODE,
        sentence=f"Slurm drains this node: {reason or 'no reason given'}",
        component=sensed.component,
        blame=sensed.blame,
        severity=sensed.severity,
        action=sensed.action,
        role=sensed.role,
        source="slurm",
    )
