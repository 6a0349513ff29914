"""The choice of periodic reports that are put on record, and what becomes of the others.

Agents report progress every two seconds. A journal that kept all of it would grow by gigabytes a day, so the older a
generation gets, the fewer reports are recorded. The newest unrecorded one of each node is held here and in
`progress.json` for the reading verbs, and is recorded after all before anything else that happens: what the brain
decides on, and what an incident or the accounting needs, is always in the journal.
"""

import asyncio
import math
from pathlib import Path

from everstep.journal.beside.live import encode_live, save_live
from everstep.model.events import MarksReported, ProgressReported
from everstep.model.record import Record

MIN_INTERVAL_S = 2.0
MAX_INTERVAL_S = 30.0
"""Between two records of a node in an old generation. Longer: smaller journal. Shorter: finer figures after a crash of
the controller itself, the only case in which a held report can be lost."""

RECORDS_PER_S = 100.0
"""Rate for all nodes together. Up to 200 nodes it changes nothing; 12,500 are recorded every two minutes, so that a
large fleet does not write its journal 60 times as fast. Also when all of them come due within the same second, as they
do two minutes after they started together. More: finer figures after a crash of the controller."""

SAVED_PER_S = 500.0
"""Reports written to progress.json: 12,500 nodes every 25 seconds."""

SLICE = 50
"""Reports that are encoded before the loop looks after its connections again."""

AGE_PER_INTERVAL = 60.0
"""A generation of ten minutes is recorded every ten seconds, one of half an hour and more every thirty."""


class Thinning:
    def __init__(self, live_path: Path) -> None:
        self.held: dict[str, ProgressReported] = {}
        self._live_path = live_path
        self._generation = -1
        self._formed_at = 0.0
        self._recorded_at: dict[str, float] = {}  # or when it was found that its report has to be
        self._allowed = 0.0  # records of a large fleet, as of `_allowed_at`
        self._allowed_at = -math.inf
        self._is_saved = True

    def note(self, record: Record) -> None:
        """A record was written."""
        event = record.event
        if isinstance(event, MarksReported | ProgressReported):
            if event.generation != self._generation:
                self._generation, self._formed_at = event.generation, record.at
            self._recorded_at[event.node] = record.at
            held = self.held.get(event.node)
            if held is not None and held.at <= event.at:
                del self.held[event.node]

    def holds_back(self, event: ProgressReported, at: float) -> bool:
        """Take a report that need not be recorded now. False: it has to be."""
        if event.generation != self._generation:
            return False
        if self._is_due(event.node, at):
            # What the same node says before this one is on record is not due again.
            self._recorded_at[event.node] = at
            return False
        self.held[event.node] = event
        self._is_saved = False
        return True

    def _is_due(self, node: str, at: float) -> bool:
        recorded_at = self._recorded_at.get(node)
        if recorded_at is None:
            return True
        by_age_s = min(MAX_INTERVAL_S, max(MIN_INTERVAL_S, (at - self._formed_at) / AGE_PER_INTERVAL))
        by_number_s = len(self._recorded_at) / RECORDS_PER_S
        if at - recorded_at < max(by_age_s, by_number_s) - MIN_INTERVAL_S / 2:
            return False
        return by_number_s <= MIN_INTERVAL_S or self._is_allowed(at)

    def _is_allowed(self, at: float) -> bool:
        """One record more of a large fleet within this second."""
        passed_s = max(0.0, at - self._allowed_at)
        self._allowed = min(RECORDS_PER_S, self._allowed + passed_s * RECORDS_PER_S)
        self._allowed_at = at
        if self._allowed < 1.0:
            return False
        self._allowed -= 1.0
        return True

    def take(self) -> list[ProgressReported]:
        """Take all held reports, to be recorded before something else."""
        taken, self.held = list(self.held.values()), {}
        return taken

    @property
    def save_every_s(self) -> float:
        return max(MIN_INTERVAL_S, len(self._recorded_at) / SAVED_PER_S)

    async def save(self) -> None:
        """For the reading verbs; a disk that cannot take it costs them only freshness."""
        if self._is_saved:
            return
        self._is_saved = True
        events, parts = tuple(self.held.values()), []
        for first in range(0, len(events), SLICE):
            parts.append(encode_live(events[first : first + SLICE]))
            await asyncio.sleep(0)
        await asyncio.to_thread(save_live, self._live_path, parts)
