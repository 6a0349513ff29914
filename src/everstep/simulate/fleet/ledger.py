"""Input of the accounting for a simulated run: the same values as for a real journal, so that the same code counts.

All ranks move in lockstep here, so one rank's account stands for all.
"""

import msgspec

from everstep.goodput.figures import Goodput, goodput_of
from everstep.goodput.history import Ending, EndKind, GenerationHistory, History
from everstep.model.facts import RankAccount
from everstep.simulate.fleet.pace import Pace


class Parts(msgspec.Struct, kw_only=True):
    """Seconds of waiting that the buckets do not tell apart."""

    exam_s: float = 0.0
    node_s: float = 0.0  # for a machine
    resubmit_s: float = 0.0  # for people and the queue, after the run gave up


class _Begun(msgspec.Struct, kw_only=True):
    formed_at: float
    pace: Pace
    restore_s: float
    broken_at: float | None = None  # no step after it
    detected_at: float | None = None
    decided_at: float | None = None
    cause: str | None = None  # of its end


class Ledger:
    def __init__(self, begun_at: float) -> None:
        self.parts = Parts()
        self.num_generations = 0
        self._begun_at = begun_at
        self._done: list[GenerationHistory] = []
        self._now: _Begun | None = None

    @property
    def pace(self) -> Pace | None:
        """Return the pace of the generation that runs; None: no generation runs."""
        return self._now.pace if self._now is not None else None

    @property
    def broken_at(self) -> float | None:
        return self._now.broken_at if self._now is not None else None

    def form(self, at: float, pace: Pace, restore_s: float) -> None:
        self.close()
        self.num_generations += 1
        self._now = _Begun(formed_at=at, pace=pace, restore_s=restore_s)

    def break_at(self, at: float) -> None:
        """From here on no step is done, whether or not it is noticed."""
        if self._now is not None and self._now.broken_at is None:
            self._now.broken_at = at

    def detect_at(self, at: float) -> None:
        if self._now is not None and self._now.detected_at is None:
            self._now.detected_at = at

    def decide_at(self, at: float) -> None:
        """The decision to stop."""
        self.break_at(at)
        if self._now is not None and self._now.decided_at is None:
            self._now.decided_at = at

    def blame(self, cause: str) -> None:
        """Why it ends; the first one counts."""
        if self._now is not None and self._now.cause is None:
            self._now.cause = cause

    def close(self) -> None:
        """The generation is over."""
        if self._now is not None:
            self._done.append(self._history(self._now, self._now.broken_at))
        self._now = None

    def goodput(self, until: float) -> Goodput:
        generations = list(self._done)
        if self._now is not None:
            generations.append(self._history(self._now, self._now.broken_at, until))
        history = History(begun_at=self._begun_at, until=until, world_size=1, generations=tuple(generations))
        return goodput_of(history)

    def _history(self, begun: _Begun, broken_at: float | None, until: float | None = None) -> GenerationHistory:
        ending = None
        if broken_at is not None:
            decided_at = begun.decided_at if begun.decided_at is not None else broken_at
            decided_at = max(broken_at, decided_at)
            detected_at = min(decided_at, max(broken_at, begun.detected_at or decided_at))
            ending = Ending(
                kind=EndKind.FAULT,
                at=broken_at,
                detected_at=detected_at,
                decided_at=decided_at,
                incident=begun.cause,
            )
        seen_until = broken_at if broken_at is not None else until
        pace = begun.pace
        number = pace.completed(seen_until) if seen_until is not None else 0
        has_begun = seen_until is not None and seen_until > pace.begun_at
        account = RankAccount(
            rank=0,
            spawned_at=begun.formed_at,
            entered_at=begun.formed_at,
            restore_s=begun.restore_s if has_begun else 0.0,
            loop_at=pace.begun_at if has_begun else None,
            first_step=pace.first_step if number else None,
            last_step=pace.first_step + number - 1 if number else None,
            first_step_at=pace.done_at(1) if number else None,
            last_step_at=pace.done_at(number) if number else None,
            stall_s=pace.stalled_s(number) if number else 0.0,
            counts_own_steps=True,
        )
        return GenerationHistory(
            formed_at=begun.formed_at,
            spawned={0: begun.formed_at},
            accounts={0: account},
            resumed_step=pace.first_step,
            ending=ending,
        )
