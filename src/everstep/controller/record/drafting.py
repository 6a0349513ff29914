"""From inputs to drafts: what each leads to, one by one, or many reports of progress at once.

Before anything is decided, the held progress of all nodes goes on record: 12,500 reports, which the brain takes in
strides. An input that breaks the brain is noted and ends the controller; the second time it is left out.
"""

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable

from everstep.analyzer.numbers.alerts import is_cause
from everstep.controller.peers.peers import Input
from everstep.controller.record.ledger import Drafted, Ledger
from everstep.controller.record.poison import Poison
from everstep.model.events import (
    CheckpointCommitted,
    LossNoted,
    MarksReported,
    NodeAlerted,
    ProgressReported,
    RuntimeFaulted,
    SnapshotPersisted,
    SnapshotsRefused,
    StoreOpened,
    TemplateReported,
)

STRIDE = 128
"""Held reports that are drafted together: some milliseconds."""

NEEDS_NO_PROGRESS = (
    CheckpointCommitted,
    LossNoted,
    MarksReported,
    ProgressReported,
    RuntimeFaulted,
    SnapshotPersisted,
    SnapshotsRefused,
    StoreOpened,
    TemplateReported,
)
"""Told by every node of a fleet, and decided without a look at the accounts of its ranks."""

log = logging.getLogger("everstep.controller")


class PoisonedError(Exception):
    """An input made the controller fail; it was noted, and the process should be started again."""


class Drafting:
    """`put_aside(item, kind)` is told of inputs that lead to nothing and are not recorded."""

    def __init__(self, ledger: Ledger, poison: Poison, put_aside: Callable[[Input, str], None]) -> None:
        self._ledger = ledger
        self._poison = poison
        self._put_aside = put_aside

    def some(self, due: deque[Input], after: list[Drafted]) -> list[tuple[Input, Drafted]]:
        """Takes the first of what is due, with those that can be drafted together with it, and drafts it."""
        if len(due) > 1:
            ahead = itertools.takewhile(lambda each: isinstance(each.event, ProgressReported), due)
            items = list(itertools.islice(ahead, STRIDE))
            together = self._draft_together(items, after)
            if together:
                for _ in together:
                    due.popleft()
                return list(zip(items, together, strict=False))
        item = due.popleft()
        drafted = self._draft(item, after)
        return [] if drafted is None else [(item, drafted)]

    def _draft_together(self, items: list[Input], after: list[Drafted]) -> list[Drafted]:
        """None where one of them has to be looked at by itself."""
        if self._poison.is_known or any(item.source for item in items):
            return []
        try:
            reports = [item.event for item in items if isinstance(item.event, ProgressReported)]
            return self._ledger.draft_together(reports, at=time.time(), after=after)
        except Exception:
            log.exception("reports of progress are drafted one by one")
            return []

    def _draft(self, item: Input, after: list[Drafted]) -> Drafted | None:
        """What it leads to; None when it is put aside. Raises PoisonedError."""
        if self._poison.is_known and self._poison.is_poison(item.key):
            log.error("skipped, it ended the controller before: %r: %s", item.event, self._poison.why)
            self._put_aside(item, "poison")
            return None
        state = after[-1].state if after else self._ledger.state
        if state.is_over:
            self._put_aside(item, "after-end")  # the journal ends with the end of the run
            return None
        try:
            drafted = self._ledger.draft(item.event, at=time.time(), after=after, source=item.source, seq=item.seq)
        except Exception as error:
            log.exception("failed on %r", item.event)
            self._poison.crashed(item.key, repr(error))
            raise PoisonedError(repr(error)) from error
        if drafted.is_stale:
            self._put_aside(item, "stale-generation")
            return None
        return drafted


def needs_no_progress(event: object) -> bool:
    """What follows from it, if anything, does not depend on how far the ranks are, so what is held need not be on
    record before it: a node that warns every minute would otherwise put the progress of all nodes there each time."""
    if isinstance(event, NodeAlerted):
        return not any(map(is_cause, event.alerts))
    return isinstance(event, NEEDS_NO_PROGRESS)
