"""The controller's own run, for the page: the view that it keeps anyway, looked at between two turns of its loop."""

import asyncio
import os
import time
from pathlib import Path

from everstep.controller.loop import Controller
from everstep.report.parts.asked import Asked
from everstep.report.picture.overview import Overview
from everstep.web.feed import Row
from everstep.web.source import Moment


class RunSource:
    def __init__(self, controller: Controller) -> None:
        self.overview = Overview()
        self._controller = controller

    @property
    def run_dir(self) -> Path:
        return self._controller.ledger.journal.path.parent

    async def now(self) -> Moment:
        return Moment(view=self._controller.ledger.fold.view, asked=Asked(at=time.time(), controller_pid=os.getpid()))

    async def rows(self) -> dict[str, Row]:
        """The long past of a large run in slices: the loop looks after its connections in between."""
        for _ in self.overview.settle((await self.now()).view):
            await asyncio.sleep(0)
        moment = await self.now()
        return self.overview.rows(moment.view, moment.asked)
