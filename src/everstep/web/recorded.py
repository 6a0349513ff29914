"""A run as its journal has it, live or long over: read again when it has grown.

The source of `everstep ui` and `everstep top`.
"""

import asyncio
import threading
import time
from pathlib import Path

from everstep.journal.load import Growing, load_run
from everstep.journal.runs import RunDir
from everstep.journal.view import RunView
from everstep.report.parts.asked import Asked
from everstep.report.picture.overview import Overview
from everstep.web.feed import Row
from everstep.web.source import Moment


class Recorded:
    """Raises JournalError from `look`, `now` and `rows` when the journal cannot be read."""

    def __init__(self, run_dir: RunDir) -> None:
        self.overview = Overview()
        self._dir = run_dir
        self._lock = threading.Lock()
        self._growing = Growing(run_dir.journal)
        self._whole: tuple[tuple[int, int], RunView] | None = None  # of a run without a writer

    @property
    def run_dir(self) -> Path:
        return self._dir.path

    def look(self) -> Moment:
        """The run as of now, on the calling thread."""
        with self._lock:
            return self._look()

    def look_rows(self) -> dict[str, Row]:
        """Look at the run and return its rows, both in one turn: the next look changes the view."""
        with self._lock:
            moment = self._look()
            return self.overview.rows(moment.view, moment.asked)

    async def now(self) -> Moment:
        return await asyncio.to_thread(self.look)

    async def rows(self) -> dict[str, Row]:
        return await asyncio.to_thread(self.look_rows)

    def _look(self) -> Moment:
        # Asked before the journal is read: a controller that ends in between has written its last record by then.
        asked = Asked(at=time.time(), controller_pid=self._dir.controller_pid())
        return Moment(view=self._growing.look_live() if asked.has_controller else self._read(), asked=asked)

    def _read(self) -> RunView:
        try:
            status = self._dir.journal.stat()
        except OSError:
            return load_run(self._dir.journal)  # which says what is wrong
        key = status.st_size, status.st_mtime_ns
        if self._whole is None or self._whole[0] != key:
            self._whole = key, load_run(self._dir.journal)
        return self._whole[1]
