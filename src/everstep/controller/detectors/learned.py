"""How long steps, evaluations and saves take in this job, learned from the agents' signals. In memory only.

Two rhythms: of all steps, and of the steps in which no rank had a reason to take long. Ranks that repeatedly computed
or waited for something outside for a minute say nothing about a minute in which no rank has a reason.
"""

from collections import deque

from everstep.analyzer.hangs.hang import HangPolicy, look_s
from everstep.analyzer.hangs.signals import Phase as JobPhase
from everstep.analyzer.hangs.signals import Rhythm, WaitsOn
from everstep.model.facts import Signals
from everstep.model.observations import SignalsReported

NUM_STEP_TIMES = 512
MAX_REPEATED = 16
"""A look that spans many short steps counts as so many steps of their mean."""

MIN_PAUSE_S = 0.1
"""Two looks at one moment differ by less."""

LEAST_PHASE_S = 0.5
"""Shorter evaluations and saves teach nothing: a save of some settings says nothing of the checkpoint to come."""

NUM_PHASE_TIMES = 64

MOSTLY = 0.9
"""Share of a step: if more of it was something else, the step is not used."""

Span = tuple[float, float]


class _Spans:
    """Times at which something else was done, the newest few."""

    def __init__(self) -> None:
        self._spans: deque[Span] = deque(maxlen=64)

    def add(self, begun: float, ended: float) -> None:
        """Add a span. One that touches the one before, as when another node reports the same, extends that."""
        if self._spans and begun <= self._spans[-1][1]:
            begun, ended = min(begun, self._spans[-1][0]), max(ended, self._spans.pop()[1])
        self._spans.append((begun, ended))

    def within_s(self, begun: float, ended: float) -> float:
        return sum(max(0.0, min(ended, end) - max(begun, begin)) for begin, end in self._spans)


class Learned:
    def __init__(self) -> None:
        self.steps: dict[int, tuple[int, float]] = {}  # rank -> newest step and when it was done
        self._moved_at: dict[int, float] = {}  # rank without steps -> when it communicated last
        self._step_s: deque[float] = deque(maxlen=NUM_STEP_TIMES)
        self._without_reason_s: deque[float] = deque(maxlen=NUM_STEP_TIMES)
        self._evaluation_s: deque[float] = deque(maxlen=NUM_PHASE_TIMES)
        self._checkpoint_s: deque[float] = deque(maxlen=NUM_PHASE_TIMES)
        self._phases: dict[int, tuple[float | None, float | None]] = {}  # rank -> its last evaluation and save
        self._apart = _Spans()  # ranks did something else than steps, and said so
        self._reasoned = _Spans()  # ranks were seen to have a reason

    def begin(self) -> None:
        """Another generation: the times stay, the steps are counted anew."""
        self.steps.clear()
        self._moved_at.clear()

    def take(self, before: SignalsReported | None, event: SignalsReported) -> None:
        """One node's signals, and those that it sent before them."""
        if before is not None and (any(map(is_excused, before.signals)) or any(map(is_excused, event.signals))):
            self._apart.add(before.at, event.at)
        self._learn_steps(event)
        self._learn_phases(event)

    def note_reason(self, begun: float, ended: float) -> None:
        """Record a span in which a rank had a reason to keep the others waiting."""
        self._reasoned.add(begun, ended)

    @property
    def usual(self) -> Rhythm:
        return self._rhythm(self._step_s)

    def rhythm(self, rule: HangPolicy) -> Rhythm:
        """The rhythm for ranks without a reason: from such steps only, unless there are too few of them."""
        without_reason = self._rhythm(self._without_reason_s)
        return min(self.usual, without_reason, key=lambda rhythm: look_s(rhythm, JobPhase.TRAIN, rule))

    def _rhythm(self, step_s: deque[float]) -> Rhythm:
        return Rhythm(
            step_s=tuple(step_s), evaluation_s=tuple(self._evaluation_s), checkpoint_s=tuple(self._checkpoint_s)
        )

    def _learn_steps(self, event: SignalsReported) -> None:
        """The slowest rank's time per step between this look and the one before. What is no part of a step makes no
        step longer: an evaluation of a minute, learned as a long step, would hide hangs for four."""
        slowest: tuple[float, int, float, float] = (0.0, 0, 0.0, 0.0)  # time per step, steps, begun, ended
        for each in event.signals:
            if (told := self._told(each, event.at)) is not None:
                num_steps, begun, ended = told
                apart_s = self._apart.within_s(begun, ended)
                if each.last_step is None or apart_s < MOSTLY * (ended - begun):
                    slowest = max(slowest, ((ended - begun - apart_s) / num_steps, num_steps, begun, ended))
        step_s, num_steps, begun, ended = slowest
        self._step_s.extend([step_s] * min(num_steps, MAX_REPEATED))
        if self._reasoned.within_s(begun, ended) < MOSTLY * step_s:
            self._without_reason_s.extend([step_s] * min(num_steps, MAX_REPEATED))

    def _told(self, signals: Signals, at: float) -> tuple[int, float, float] | None:
        """Steps that this rank has done since the look before, from when to when. One whose steps are not seen has done
        one if it communicated."""
        if signals.last_step is not None and signals.last_step_at is not None:
            before = self.steps.get(signals.rank)
            self.steps[signals.rank] = (signals.last_step, signals.last_step_at)
            if before is None or signals.last_step <= before[0] or signals.last_step_at <= before[1]:
                return None
            return signals.last_step - before[0], before[1], signals.last_step_at
        moved, moved_before = moved_at(signals, at), self._moved_at.get(signals.rank)
        if moved is None:
            return None
        self._moved_at[signals.rank] = moved
        if moved_before is None or moved - moved_before < MIN_PAUSE_S:
            return None
        return 1, moved_before, moved

    def _learn_phases(self, event: SignalsReported) -> None:
        """Evaluations and saves that came to their end since the look before; of a node, the longest."""
        ended: tuple[list[float], list[float]] = ([], [])
        for each in event.signals:
            new = (each.evaluation_s, each.checkpoint_s)
            before = self._phases.get(each.rank, (None, None))
            self._phases[each.rank] = new
            for values, now_s, before_s in zip(ended, new, before, strict=True):
                if now_s is not None and now_s != before_s and now_s >= LEAST_PHASE_S:
                    values.append(now_s)
        for known, values in zip((self._evaluation_s, self._checkpoint_s), ended, strict=True):
            known.extend(sorted(values)[-1:])


def is_excused(signals: Signals) -> bool:
    """It says why it takes long."""
    is_waiting = waits_on(signals.waits_on) is not WaitsOn.NOTHING
    return is_waiting or signals.paused or bool(signals.busy) or signals.phase != JobPhase.TRAIN


def moved_at(signals: Signals, at: float) -> float | None:
    """When it did a step or communicated last; None: not known."""
    communicated = None if signals.communication_s is None else at - signals.communication_s
    return max((each for each in (signals.last_step_at, communicated) if each is not None), default=None)


def waits_on(name: str) -> WaitsOn:
    try:
        return WaitsOn(name)
    except ValueError:  # of an agent that knows more
        return WaitsOn.NOTHING
