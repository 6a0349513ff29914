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

from everstep.analyzer.hangs.diagnosis import Diagnosis
from everstep.analyzer.hangs.links import Sight, is_candidate, joined
from everstep.errors import EverstepError
from everstep.evidence.apart import Child, end_child, nothing_known, read_apart, start_child
from everstep.model.actions import Diagnose
from everstep.model.events import Diagnosed, Event, EvidenceCollected, HangSuspected
from everstep.model.verdict import Verdict

ARRIVAL_S = 2.0
_LOOK_S = 0.02

LINKS_S = 4.5
"""From when a job stood still until a link that was cut then has been missed and reported: such a link is dead to the
probes after two or three seconds, and nothing is asked of it more than once a second."""

LINKS_WAIT_S = 2.0
"""No longer than this: the diagnosis has a limit of its own."""

AHEAD_S = 300.0
"""A reader without a request within this time is ended. Starting one takes a quarter of a second of a CPU, so a job
that pauses at each step pays less than a thousandth of one."""

MAX_EVIDENCE = 64
"""How many pieces go into the journal; all of them stay in the files."""

log = logging.getLogger("everstep.controller")


class Diagnosing:
    """From the reports that evidence was collected to what it says. Files of ranks on other hosts come by another way
    than the report that names them, and may come later; what never comes is missing."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._incident = ""
        self._stood_since = 0.0
        self._usual_s: float | None = None
        self._files: list[Path] = []
        self._ahead: Child | None = None

    def note(self, event: Event) -> None:
        """Note the evidence of one incident at a time: the newest."""
        if isinstance(event, HangSuspected):
            self._stood_since, self._usual_s = event.since, event.window_s
            self.prepare()
        if isinstance(event, EvidenceCollected):
            if event.incident != self._incident:
                self._incident, self._files = event.incident, []
            self._files += [self._run_dir / each.file for each in event.gathered if each.has]

    async def answer(
        self, action: Diagnose, has_moved_on: Callable[[], bool], sight: Callable[[], Sight | None] = lambda: None
    ) -> Diagnosed:
        """`sight`: what is known of the links between the nodes, by now."""
        await self.wait(action.incident)
        folder = self._run_dir / "evidence" / action.incident
        ahead, self._ahead = self._ahead, None
        found = await asyncio.to_thread(diagnose_folder, folder, action.world_size, ahead, self._usual_s)
        if isinstance(found, Verdict):
            verdict, limit_s = found, None
        else:
            verdict, limit_s = await self._joined(found, sight), found.limit_s
        verdict = msgspec.structs.replace(verdict, evidence=verdict.evidence[:MAX_EVIDENCE])
        return Diagnosed(
            at=time.time(),
            generation=action.generation,
            incident=action.incident,
            verdict=verdict,
            moved_on=has_moved_on(),
            limit_s=limit_s,
        )

    def prepare(self) -> None:
        """Start the reader of evidence before there is any, so that its modules are loaded: saves a second and a half
        on a busy machine."""
        if self._ahead is not None:
            return
        try:
            self._ahead = child = start_child()
        except OSError as error:
            log.warning("no reader of evidence ahead of its time: %s", error)
            return
        asyncio.get_running_loop().call_later(AHEAD_S, self._end_ahead, child)

    def _end_ahead(self, child: Child) -> None:
        if child is self._ahead:
            self._ahead = None
            end_child(child)

    async def _joined(self, found: Diagnosis, sight: Callable[[], Sight | None]) -> Verdict:
        """Join the verdict with what the links report.

        Where the network could be the cause, a link that was cut when the job stopped gets time to be missed: such a
        hang is doubtful, and nothing waits for the answer."""
        try:
            if sight() is None:
                return found.verdict
            if is_candidate(found):
                left_s = self._stood_since + LINKS_S - time.time()
                await asyncio.sleep(min(LINKS_WAIT_S, max(0.0, left_s)))
            seen = sight()
            return found.verdict if seen is None else await asyncio.to_thread(joined, found, seen)
        except Exception:
            log.exception("the links say nothing")
            return found.verdict

    async def wait(self, incident: str, limit_s: float = ARRIVAL_S) -> None:
        ends_at = time.monotonic() + limit_s
        left = list(self._files) if incident == self._incident else []
        while (left := [path for path in left if not path.exists()]) and time.monotonic() < ends_at:
            await asyncio.sleep(_LOOK_S)


def diagnose_folder(
    folder: Path, world_size: int, ahead: Child | None = None, usual_s: float | None = None
) -> Diagnosis | Verdict:
    """Diagnose the evidence in this directory; if it cannot be read, return the verdict that reports it.

    `ahead`: a child of `apart.start_child`. `usual_s`: the longest pause that is usual in the job, if known.
    """
    now = time.time()
    try:
        return read_apart(folder, now, world_size=world_size, usual_s=usual_s, ahead=ahead).diagnosis
    except EverstepError as error:
        return nothing_known(f"the evidence cannot be read: {error}", now)
    except Exception as error:
        log.exception("the diagnosis failed")
        return nothing_known(f"the diagnosis itself failed: {type(error).__name__}: {error}", now)
