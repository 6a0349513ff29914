"""The evidence files of an incident, read in a process of their own and cached: ranks wrote them, and reading is
expensive."""

import asyncio
import time
from pathlib import Path

from everstep.evidence.apart import read_apart
from everstep.model.facts import RankGroup
from everstep.report.picture.wavefront import RanksPage, ranks_page

MAX_KEPT = 16


class Evidence:
    """One reading at a time, for all clients."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._kept: dict[tuple[Path, int], RanksPage] = {}

    async def read(self, folder: Path, world_size: int, groups: tuple[RankGroup, ...]) -> RanksPage:
        """Raises EverstepError."""
        async with self._lock:
            key = folder, await asyncio.to_thread(_newest, folder)
            page = self._kept.get(key)
            if page is None:
                found = await asyncio.to_thread(
                    read_apart, folder, time.time(), world_size=world_size or None, with_case=True
                )
                page = await asyncio.to_thread(ranks_page, found.folder.case, found.diagnosis, groups)
                self._kept = dict(list(self._kept.items())[-MAX_KEPT + 1 :]) | {key: page}
            return page


def _newest(folder: Path) -> int:
    """Changes when a file is added."""
    try:
        return max((path.stat().st_mtime_ns for path in (folder, *folder.glob("gen-*"))), default=0)
    except OSError:
        return 0
