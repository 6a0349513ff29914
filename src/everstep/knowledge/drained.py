"""The alert of a requested drain, and of its withdrawal."""

from everstep.knowledge.node_codes import SENSED
from everstep.knowledge.signature import Action
from everstep.model.facts import DRAINED, Alert


def drained(at: float, sentence: str, source: str) -> Alert:
    """An alert as when a machine reports itself unfit."""
    sensed = SENSED[DRAINED]
    return Alert(
        at=at,
        code=DRAINED,
        sentence=sentence,
        component=sensed.component,
        blame=sensed.blame,
        severity=sensed.severity,
        action=sensed.action,
        role=sensed.role,
        source=source,
    )


def withdrawn(at: float, sentence: str, source: str) -> Alert:
    """Explains nothing and asks for nothing: what was asked before is forgotten."""
    sensed = SENSED[DRAINED]
    return Alert(
        at=at,
        code=DRAINED,
        sentence=sentence,
        component=sensed.component,
        blame=sensed.blame,
        severity="info",
        action=Action.MONITOR,
        source=source,
    )
