"""What the end of one rank says, as an alert: its last lines and its own report, by the signatures. Pure."""

import dataclasses

from everstep.knowledge.findings import Finding
from everstep.knowledge.live import classify
from everstep.knowledge.signature import Action
from everstep.model.facts import Alert, ErrorReport
from everstep.model.verdict import Blame

MAX_LINE = 500


_HEAD = "Traceback (most recent call last):"
_NODE = frozenset(
    {Action.RESET_GPU, Action.DRAIN_AND_RESTART_NODE, Action.REBOOT_NODE, Action.REPLACE_NODE, Action.RESTART_IN_PLACE}
)
"""What only the kernel, a driver or a sense of the node can ask for."""


def end_of_rank(last_output: str, error: ErrorReport | None, *, rank: int, at: float) -> Alert | None:
    """The strongest thing that they say; None when nothing in them is known.

    `last_output`: what it wrote in its last seconds, or since its last step. It is a hint: a program can print
    anything, so it never asks for more than a check of the node.
    """
    found = classify(last_output, report="" if error is None else _as_text(error))
    if found is None:
        return None
    if found.action in _NODE and found.blame is Blame.MACHINE:
        found = dataclasses.replace(found, action=Action.CHECK_NODE)
    return as_alert(found, at=at, source=f"rank {rank} stderr", rank=rank)


def _as_text(error: ErrorReport) -> str:
    """Its traceback, or what it raised in the form of one."""
    reported = f"{error.traceback}\n" if error.traceback else ""
    if error.message not in reported or not reported:
        reported += f"{_HEAD}\n{error.kind or 'Exception'}: {error.message}\n"
    return reported


def as_alert(found: Finding, *, at: float, source: str, rank: int | None = None) -> Alert:
    return Alert(
        at=at,
        code=found.code,
        sentence=found.title,
        component=found.component,
        blame=str(found.blame),
        severity=str(found.severity),
        action=str(found.action),
        role=str(found.role),
        source=source,
        line=found.text[:MAX_LINE],
        device=found.subject,
        rank=rank,
        count=found.count,
    )
