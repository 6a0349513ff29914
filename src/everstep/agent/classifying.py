"""What the end of a rank's output means, by the knowledge base. Called once per ended rank, in the agent's process.

The first call of a process compiles some hundreds of signatures, a third of a second: `warm_up` does that in a thread
beside the first start, so that no recovery waits for it. A fault of ours in here costs the explanation, nothing else.
"""

import logging

from everstep.knowledge.findings import Finding
from everstep.knowledge.live import classify
from everstep.model.facts import Alert, ErrorReport

log = logging.getLogger(__name__)

MAX_LINE = 500


def warm_up() -> None:
    """Raises nothing."""
    explain_end("", None, rank=0, at=0.0)


def explain_end(last_output: str, error: ErrorReport | None, *, rank: int, at: float) -> Alert | None:
    """The strongest thing that its last lines and its own report say; None when nothing in them is known."""
    reported = f"{error.traceback}\n" if error is not None and error.traceback else ""
    if error is not None and error.message not in reported:
        reported += f"{error.kind}: {error.message}\n"
    try:
        found = classify(f"{last_output}\n{reported}")
    except Exception:
        log.exception("the end of rank %d cannot be classified", rank)
        return None
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
