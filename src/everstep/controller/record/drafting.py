"""From inputs to drafts: what each leads to, one by one, or many reports of progress at once.

Before anything is decided, the held progress of all nodes goes on record: 12,500 reports, which the brain takes in
strides. An input that breaks the brain is noted over the crash of the controller that follows; an input that has ended
two controllers is left out.
"""

import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from everstep.analyzer.numbers.alerts import is_cause
from everstep.controller.peers.peers import Input
from everstep.controller.record.ledger import Drafted, Ledger
from everstep.linux.regular import read_regular
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

NOTE_NAME = "controller.crash.json"
MAX_CRASHES = 2

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
"""Sent by every node of a fleet, and decided without a look at the accounts of its ranks."""

log = logging.getLogger("everstep.controller")


class PoisonedError(Exception):
    """An input made the controller fail; it was noted, and the process should be started again."""


class _Note(msgspec.Struct, kw_only=True):
    key: str = ""
    num_crashes: int = 0
    why: str = ""


class Poison:
    """The input that the last controller died of. A disk that cannot take the note costs only the memory."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / NOTE_NAME
        self._note = _Note()
        with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self._note = msgspec.json.decode(read_regular(self._path), type=_Note)

    def known(self) -> tuple[str, str] | None:
        """Return the key of the input to leave out, and why; None if there is nothing to leave out."""
        note = self._note
        return (note.key, note.why) if note.num_crashes >= MAX_CRASHES else None

    def crashed(self, key: str, why: str) -> None:
        times = self._note.num_crashes + 1 if self._note.key == key else 1
        self._note = _Note(key=key, num_crashes=times, why=why)
        with contextlib.suppress(OSError):
            self._path.write_bytes(msgspec.json.encode(self._note))


class Drafting:
    """Turns inputs into drafts of records. `put_aside(item, kind)` is called for inputs that have no effect and are not
    recorded."""

    def __init__(self, ledger: Ledger, poison: Poison, put_aside: Callable[[Input, str], None]) -> None:
        self._ledger = ledger
        self._poison = poison
        self._left_out = poison.known()  # what a controller dies of now, the next one leaves out
        self._put_aside = put_aside

    def due(self, items: list[Input]) -> deque[Input]:
        """These, and before them the progress that is held, if what follows from one may depend on it."""
        if all(_needs_no_progress(item.event) for item in items):
            return deque(items)
        return deque([*(Input(event=event) for event in self._ledger.thinning.take()), *items])

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
        if self._left_out is not None or any(item.source for item in items):
            return []
        try:
            reports = [item.event for item in items if isinstance(item.event, ProgressReported)]
            return self._ledger.draft_together(reports, at=time.time(), after=after)
        except Exception:
            log.exception("reports of progress are drafted one by one")
            return []

    def _draft(self, item: Input, after: list[Drafted]) -> Drafted | None:
        """Draft what one input leads to; None if it is put aside. Raises PoisonedError."""
        if self._left_out is not None and self._left_out[0] == item.key:
            log.error("skipped, it ended the controller before: %r: %s", item.event, self._left_out[1])
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


def _needs_no_progress(event: object) -> bool:
    """Return whether the event's consequences, if any, do not depend on how far the ranks are.

    Held progress then need not be recorded before it: otherwise a node that warns every minute would put the progress
    of all nodes on record each time.
    """
    if isinstance(event, NodeAlerted):
        return not any(map(is_cause, event.alerts))
    return isinstance(event, NEEDS_NO_PROGRESS)
