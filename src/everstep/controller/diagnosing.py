"""From the evidence files of an incident to a verdict, by `evidence` and `analyzer`. In a thread of the controller,
which waits for a process that reads them: ranks have written there too.

Raises nothing: evidence that cannot be read gives the verdict that says so. Evidence of other hosts is sent here by
their launchers.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from everstep.errors import EverstepError
from everstep.evidence.apart import nothing_known, read_apart
from everstep.model.actions import Diagnose
from everstep.model.events import Diagnosed, Event, EvidenceCollected
from everstep.model.verdict import Verdict

ARRIVAL_S = 2.0
_LOOK_S = 0.02

MAX_EVIDENCE = 64
"""Of so many pieces in the journal; all of it stays in the files."""

log = logging.getLogger("everstep.controller")


class Diagnosing:
    """From the reports that evidence was collected to what it says. Files of ranks on other hosts come by another way
    than the report that names them, and may come later; what never comes is missing."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._incident = ""
        self._files: list[Path] = []

    def note(self, event: Event) -> None:
        """Of one incident at a time: the newest."""
        if isinstance(event, EvidenceCollected):
            if event.incident != self._incident:
                self._incident, self._files = event.incident, []
            self._files += [self._run_dir / each.file for each in event.gathered if each.has]

    async def answer(self, action: Diagnose, has_moved_on: Callable[[], bool]) -> Diagnosed:
        await self.wait(action.incident)
        folder = self._run_dir / "evidence" / action.incident
        verdict, limit_s = await asyncio.to_thread(diagnose_folder, folder, action.world_size)
        return Diagnosed(
            at=time.time(),
            generation=action.generation,
            incident=action.incident,
            verdict=verdict,
            moved_on=has_moved_on(),
            limit_s=limit_s,
        )

    async def wait(self, incident: str, limit_s: float = ARRIVAL_S) -> None:
        ends_at = time.monotonic() + limit_s
        left = list(self._files) if incident == self._incident else []
        while (left := [path for path in left if not path.exists()]) and time.monotonic() < ends_at:
            await asyncio.sleep(_LOOK_S)


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
