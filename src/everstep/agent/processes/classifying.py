"""What the end of a rank's output means, by the knowledge base. Called once per ended rank, in the agent's process.

The first call of a process compiles some hundreds of signatures, a quarter of a second: `warm_up` does that in a thread
beside the first start, so that no recovery waits for it. A fault of ours in here costs the explanation, nothing else.
"""

import logging

from everstep.knowledge.ending import end_of_rank
from everstep.model.facts import Alert, ErrorReport

log = logging.getLogger(__name__)


def warm_up() -> None:
    """Raises nothing."""
    explain_end("-", None, rank=0, at=0.0)


def explain_end(last_output: str, error: ErrorReport | None, *, rank: int, at: float) -> Alert | None:
    """The strongest thing that its last lines and its own report say; None when nothing in them is known."""
    if not last_output and error is None:
        return None  # without a word there is nothing to look up, however cold the signatures are
    try:
        return end_of_rank(last_output, error, rank=rank, at=at)
    except Exception:
        log.exception("the end of rank %d cannot be classified", rank)
        return None
