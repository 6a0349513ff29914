"""What the end of one rank says, as an alert: its last lines and its own report, by the signatures. Pure."""

from everstep.knowledge.findings import Finding
from everstep.knowledge.live import classify
from everstep.model.facts import Alert, ErrorReport

MAX_LINE = 500


def end_of_rank(last_output: str, error: ErrorReport | None, *, rank: int, at: float) -> Alert | None:
    """The strongest thing that they say; None when nothing in them is known."""
    reported = f"{error.traceback}\n" if error is not None and error.traceback else ""
    if error is not None and error.message not in reported:
        reported += f"{error.kind}: {error.message}\n"
    found = classify(f"{last_output}\n{reported}")
    return None if found is None else as_alert(found, at=at, source=f"rank {rank} stderr", rank=rank)


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
