"""Where a run's pages get their facts: the controller's own view, or a journal that is read. Implemented by both."""

from pathlib import Path
from typing import Protocol

import msgspec

from everstep.journal.view import RunView
from everstep.report.parts.asked import Asked
from everstep.report.picture.overview import Overview
from everstep.web.feed import Row


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    view: RunView
    asked: Asked


class Source(Protocol):
    """`overview` keeps what was settled; `now` may read a file first."""

    overview: Overview

    @property
    def run_dir(self) -> Path: ...

    async def now(self) -> Moment: ...

    async def rows(self) -> dict[str, Row]: ...
