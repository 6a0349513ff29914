"""The job's step time against its own past: one value per second, for whole minutes.

Only a new level counts that has lasted and is above every earlier level of the job: one evaluation, one save or one
hiccup is a single value, and a neighbour that comes and goes is reported once. Used by the slowness watch.
"""

import statistics
from collections import deque

import msgspec

from everstep.analyzer.slowness.slow import SlowVerdict, judge_history
from everstep.core.state.schema import State
from everstep.model.observations import SignalsReported

VALUE_S = 1.0
NUM_VALUES = 600
JUDGE_S = 10.0
LASTED_S = 30.0
BEFORE_S = 30.0
"""Seconds that a level must have lasted."""
MIN_SHARE = 0.1
"""`analyzer.slowness.change` detects three percent; on shared machines, only a tenth is worth an operator's time."""

AGAIN_S = 300.0
"""Seconds between two reported changes: a machine that gets ever busier is reported once."""


class _Value(msgspec.Struct, frozen=True):
    at: float
    step: int
    step_s: float


class Pace:
    def __init__(self) -> None:
        self._values: deque[_Value] = deque(maxlen=NUM_VALUES)
        self._last: tuple[int, float] | None = None  # step, and the time at which it was done
        self._rank = -1
        self._judged_at = float("-inf")
        self._highest_s = 0.0  # of all levels so far
        self._accepted_at = float("-inf")

    def begin(self) -> None:
        """Begin a generation: whether it resembles the one before is unknown."""
        self._values.clear()
        self._last = None
        self._rank = -1
        self._highest_s = 0.0
        self._accepted_at = float("-inf")

    def take(self, event: SignalsReported, state: State) -> None:
        """Take the steps of one rank only: all ranks wait for each other."""
        rank = _first_alive(state)
        if rank != self._rank:
            self._rank, self._last = rank, None
        mine = next((each for each in event.signals if each.rank == rank), None)
        if mine is None or mine.last_step is None or mine.last_step_at is None:
            return
        step, at = mine.last_step, mine.last_step_at
        if self._values and (step < self._values[-1].step or at < self._values[-1].at):
            self._values.clear()  # steps restarted, or the clock was set back: there is no past to compare with
        if self._last is None or step < self._last[0] or at < self._last[1]:
            self._last = (step, at)
        elif step > self._last[0] and at - self._last[1] >= VALUE_S:
            self._values.append(_Value(at, step, (at - self._last[1]) / (step - self._last[0])))
            self._last = (step, at)

    def judge(self, now: float) -> SlowVerdict | None:
        """The new level, if there is one. Later steps are compared with it."""
        # Clocks of nodes differ by a little, and may be set back by much: that must not silence the detector.
        if now <= self._accepted_at - JUDGE_S:
            self._accepted_at = float("-inf")
        if abs(now - self._judged_at) < JUDGE_S or now - self._accepted_at < AGAIN_S or not self._values:
            return None
        self._judged_at = now
        values = list(self._values)
        verdict = judge_history([v.step_s for v in values], steps=[v.step for v in values])
        if verdict.since_step is None:
            return None
        begun = next(i for i, v in enumerate(values) if v.step >= verdict.since_step)
        before, after = values[:begun], values[begun:]
        if not before or now - after[0].at < LASTED_S or after[0].at - before[0].at < BEFORE_S:
            return None
        newest_s = statistics.median(v.step_s for v in after if now - v.at <= LASTED_S or v is after[-1])
        usual_s = max(self._highest_s, statistics.median(v.step_s for v in before))
        if newest_s < (1 + MIN_SHARE) * usual_s:
            return None
        return verdict

    def accept(self, verdict: SlowVerdict, now: float) -> None:
        """Take the new level as the usual one: the change was reported, or is explained."""
        self._accepted_at = now
        since = verdict.since_step if verdict.since_step is not None else -1
        before = [v.step_s for v in self._values if v.step < since]
        self._values = deque((v for v in self._values if v.step >= since), maxlen=NUM_VALUES)
        levels = [statistics.median(part) for part in (before, [v.step_s for v in self._values]) if part]
        self._highest_s = max(self._highest_s, *levels)


def _first_alive(state: State) -> int:
    """The first live rank; -1: none. Counts up from 0 instead of sorting, because every report calls this."""
    for rank in range(len(state.workers)):
        worker = state.workers.get(rank)
        if worker is not None and worker.exit is None:
            return rank
    return -1
