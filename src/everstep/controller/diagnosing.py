"""From the evidence files of an incident to a verdict, by `evidence` and `analyzer`. In a thread of the controller,
which waits for a process that reads them: ranks have written there too.

Raises nothing: evidence that cannot be read gives the verdict that says so. It needs the run directory to be one folder
for the controller and all agents.
"""

import logging
import time
from pathlib import Path

import msgspec

from everstep.errors import EverstepError
from everstep.evidence.apart import nothing_known, read_apart
from everstep.model.verdict import Verdict

MAX_EVIDENCE = 64
"""Of so many pieces in the journal; all of it stays in the files."""

log = logging.getLogger("everstep.controller")


def diagnose_folder(folder: Path, world_size: int) -> tuple[Verdict, float | None]:
    """The verdict, and the time limit of the collectives that ranks wait in."""
    now = time.time()
    try:
        diagnosis = read_apart(folder, now, world_size=world_size).diagnosis
    except EverstepError as error:
        return nothing_known(f"the evidence cannot be read: {error}", now), None
    except Exception as error:
        log.exception("the diagnosis failed")
        return nothing_known(f"the diagnosis itself failed: {type(error).__name__}: {error}", now), None
    verdict = diagnosis.verdict
    return msgspec.structs.replace(verdict, evidence=verdict.evidence[:MAX_EVIDENCE]), diagnosis.limit_s
