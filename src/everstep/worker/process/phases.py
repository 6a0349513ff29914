"""Activities of this rank besides training: the one on its line of the board, and how long evaluations and saves took.

Reported by hooks (`phase_hooks`) and by the program (`everstep.phase`, `everstep.paused`). Only the thread that runs
the program counts: a save in a background thread keeps no rank waiting. Imports the standard library only, and a call
is a few stores; a forked process gets a copy that reports nothing.
"""

import os
import threading
import time
from typing import NamedTuple, Protocol

from everstep.worker.process.board import Activity

_TRAIN, _DATA, _OPTIMIZER = int(Activity.TRAIN), int(Activity.DATA), int(Activity.OPTIMIZER)
_EVALUATION, _CHECKPOINT = int(Activity.EVALUATION), int(Activity.CHECKPOINT)
_WITHIN_A_STEP = (_TRAIN, _DATA, _OPTIMIZER)

HABIT = 3
"""After so many steps in a row with an eval() in each it is a part of the step (the other network of a GAN), and a hang
in it is found as soon as any other."""


class Line(Protocol):
    """The part of `worker.process.board.BoardLine` that is used here."""

    def set_activity(self, activity: int, at: float) -> None: ...
    def set_busy(self, why: bytes, at: float, until: float) -> None: ...
    def set_evaluation_s(self, seconds: float) -> None: ...
    def set_checkpoint_s(self, seconds: float) -> None: ...


class Reason(NamedTuple):
    """Why a rank is busy, and for how long at most; NaN: it does not say."""

    why: bytes
    limit_s: float


class Phases:
    """One per process. Contexts nest, the innermost is what is seen; parts of a step are seen only outside of them."""

    def __init__(self, board: Line) -> None:
        self._board = board
        self._thread = threading.get_ident()
        self._contexts: list[tuple[int, float, Reason | None]] = []  # activity, since when, why
        self._now = _TRAIN
        self.evaluating_since: float | None = None  # a module was put into eval()
        self._has_evaluated = False  # in the step that is being done
        self._num_in_row = 0  # steps in a row with an eval() in them
        # A data loader's process has the board mapped and the hooks set, but the line is the rank's own.
        os.register_at_fork(after_in_child=self._be_silent)

    def revive(self) -> None:
        """This fork is the rank from now on."""
        self._thread = threading.get_ident()
        self._contexts.clear()
        self._now, self.evaluating_since = _TRAIN, None

    @property
    def is_own_thread(self) -> bool:
        return threading.get_ident() == self._thread

    @property
    def is_alive(self) -> bool:
        """False in a child that the rank forked."""
        return self._thread != 0

    def enter(self, activity: int, reason: Reason | None = None) -> bool:
        """An evaluation, a save, a pause or something else that takes long begins.

        False where it does not count: then there is nothing to leave."""
        if threading.get_ident() != self._thread:
            return False
        now = time.time()
        self._contexts.append((activity, now, reason))
        self._settle(now)
        return True

    def leave(self) -> None:
        """The innermost context is over."""
        if not self._contexts:
            return
        activity, since, _ = self._contexts.pop()
        now = time.time()
        if all(other != activity for other, *_ in self._contexts):
            self._note_s(activity, now - since)
        self._settle(now)

    def within_step(self, activity: int) -> None:
        """A part of a step begins; TRAIN: it is over."""
        if self._now in _WITHIN_A_STEP and threading.get_ident() == self._thread:
            self._show(activity, time.time())

    def evaluation_began(self) -> None:
        if self.evaluating_since is not None or threading.get_ident() != self._thread:
            return
        self._has_evaluated = True
        if self._num_in_row < HABIT:
            now = self.evaluating_since = time.time()
            self._settle(now)

    def evaluation_ended(self) -> None:
        """Note the end of an evaluation: train() was called, or a step was done, which no evaluation contains."""
        since = self.evaluating_since
        if since is None or threading.get_ident() != self._thread:
            return
        now = time.time()
        self.evaluating_since = None
        self._note_s(_EVALUATION, now - since)
        self._settle(now)

    def step_done(self) -> None:
        self._num_in_row = self._num_in_row + 1 if self._has_evaluated else 0
        self._has_evaluated = False
        if self.evaluating_since is not None:
            self.evaluation_ended()
        elif self._now in (_DATA, _OPTIMIZER):
            self.within_step(_TRAIN)

    def _settle(self, now: float) -> None:
        if self._contexts:
            activity, since, reason = self._contexts[-1]
            if reason is not None:
                self._board.set_busy(reason.why, since, since + reason.limit_s)
            self._show(activity, now)
        else:
            self._show(_TRAIN if self.evaluating_since is None else _EVALUATION, now)

    def _show(self, activity: int, now: float) -> None:
        if activity != self._now:
            self._now = activity
            self._board.set_activity(activity, now)

    def _note_s(self, activity: int, seconds: float) -> None:
        if activity == _EVALUATION:
            self._board.set_evaluation_s(seconds)
        elif activity == _CHECKPOINT:
            self._board.set_checkpoint_s(seconds)

    def _be_silent(self) -> None:
        self._thread = 0  # no thread's number
