"""Follows a run's journal from another process, by reading alone; knows when there is nothing more to come."""

import logging
import time
from collections.abc import Callable

from everstep.errors import JournalError
from everstep.journal.load import Growing
from everstep.journal.runs import RunDir
from everstep.journal.view import RunView

GONE_S = 15.0
"""Without a controller: it may be on its way back."""

log = logging.getLogger("everstep.notices")


class Following:
    """`is_alone()`: the parent is gone."""

    def __init__(self, run_dir: RunDir, is_alone: Callable[[], bool]) -> None:
        self._run_dir, self._is_alone = run_dir, is_alone
        self._growing = Growing(run_dir.journal)
        self._gone_at: float | None = None

    def view(self) -> RunView | None:
        """Up to now; None when there is none, or when it cannot be read."""
        try:
            return self._growing.look()
        except JournalError as error:
            log.warning("%s", error)
            return None

    def is_over(self) -> bool:
        view = self._growing.view
        if view is not None and view.is_over:
            return True
        if not self._is_alone() or self._run_dir.controller_pid() is not None:
            self._gone_at = None
            return False
        self._gone_at = time.monotonic() if self._gone_at is None else self._gone_at
        return time.monotonic() - self._gone_at > GONE_S
