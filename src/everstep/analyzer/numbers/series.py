"""Loss and gradient norm: not a number, or a jump to five times their own level (ByteRobust's figure). Pure.

`judge_numbers` reads a whole series that is over; `NumberSeries` takes the points of a running job one by one, keeps
only what its judgement needs, and costs some microseconds per point.
"""

import math
import statistics
from collections import deque
from collections.abc import Sequence

from everstep.analyzer.observations.finding import Finding
from everstep.model.facts import NumberPoint
from everstep.model.verdict import Confidence, Evidence

JUMP = 5.0
BASELINE_STEPS = 64
"""The level is the median of so many earlier steps: a median, so that one spike does not raise it."""
MIN_BASELINE = 8
"""Fewer steps are no level: the first losses of a training fall fast."""
ROW = 3
"""Losses or gradient norms that must be not finite in a row. With loss scaling single ones are usual: the step is
skipped. A loss that is NaN three times comes from parameters that are NaN, and no later step makes them numbers."""
PEAK = 1.5
"""A running job's jump must exceed the highest value of its baseline so far as well: losses that swing around zero
(reinforcement learning) are five times their own median now and then."""
SPIKES = 2
"""Gradient norms that must jump within ROW steps of a running job. One alone is usual: it is what clipping is for."""

LEAST_POINTS = 2
"""Fewer say nothing about how a training goes."""

Point = NumberPoint


class _Level:
    """Usual level of one number. Reports whether the newest value is a jump from it."""

    def __init__(self, num_spikes: int) -> None:
        self._num_spikes = num_spikes
        self._usual: deque[float] = deque(maxlen=BASELINE_STEPS)
        self._median: float | None = None  # of `_usual`, where it was needed
        self._spikes: list[float] = []  # values above the level that are not believed yet
        self._since_spike = 0

    def jump(self, value: float) -> float | None:
        """The level that this value completes a jump from; None while it does not."""
        if not self._is_above(value):
            self._since_spike += 1
            if self._since_spike >= ROW:
                self._take(self._spikes)
                self._spikes = []
            self._take([value])
            return None
        self._spikes.append(value)
        self._since_spike = 0
        if len(self._spikes) < self._num_spikes:
            return None
        level = self.level
        self._take(self._spikes)  # if it stays there, that becomes what is usual
        self._spikes = []
        return level

    @property
    def level(self) -> float:
        if self._median is None:
            self._median = statistics.median(self._usual)
        return self._median

    def _is_above(self, value: float) -> bool:
        # The highest first: it is cheap to know, and nearly every value is below it.
        if len(self._usual) < MIN_BASELINE or value <= PEAK * max(self._usual):
            return False
        return 0 < JUMP * self.level < value

    def _take(self, values: Sequence[float]) -> None:
        if values:
            self._usual.extend(abs(value) for value in values)
            self._median = None


class NumberSeries:
    """The points of one rank, as they come."""

    def __init__(self) -> None:
        self._levels = {"loss": _Level(1), "grad_norm": _Level(SPIKES)}
        self._num_infinite = 0
        self._num_lost = 0  # losses in a row that are not finite
        self._lost_at: int | None = None  # step of the first of them

    def take(self, point: Point, at: float, rank: int | None = None) -> Finding | None:
        """Judge this point by those before; return what is wrong with it. None: nothing."""
        finding = self.not_finite(point, at, rank)
        for name, code, what in _JUMPS:
            value = getattr(point, name)
            if value is None or not math.isfinite(value):
                continue
            level = self._levels[name].jump(value)
            if level is not None and finding is None:
                text = f"{_jumped(what, value, level, point)}."
                finding = _finding(code, text, Confidence.MEDIUM, at, rank)
        return finding

    def not_finite(self, point: Point, at: float, rank: int | None) -> Finding | None:
        is_bad = point.grad_norm is not None and not math.isfinite(point.grad_norm) and not point.skipped
        self._num_infinite = self._num_infinite + 1 if is_bad else 0
        return (
            self._lasting(point, at, rank)
            or _loss_not_finite(point, at, rank)
            or _norms_not_finite(min(self._num_infinite, ROW), point, at, rank)
        )

    def _lasting(self, point: Point, at: float, rank: int | None) -> Finding | None:
        """A loss that was left out says nothing; one whose step was skipped is fine."""
        if point.loss is None:
            return None
        if math.isfinite(point.loss) or point.skipped:
            self._num_lost = 0
            return None
        self._lost_at = point.step if self._num_lost == 0 else self._lost_at
        self._num_lost += 1
        if self._num_lost < ROW:
            return None
        since = f" since step {self._lost_at}" if self._lost_at is not None else ""
        row = f"the loss is {point.loss} for {self._num_lost} steps in a row{since}"
        text = f"{row}: the parameters have most likely become NaN."
        return _finding("ES-N07", text, Confidence.HIGH, at, rank)


def judge_numbers(points: Sequence[Point], at: float) -> Finding | None:
    """The first thing that went wrong in a series that is over; None: nothing. What follows a jump is known here, so
    one gradient norm is worth a word, and whether it stays is said."""
    series = NumberSeries()
    found = (series.not_finite(point, at, None) for point in points)
    return next((each for each in found if each is not None), None) or _jump(points, at)


_JUMPS = (("loss", "ES-N02", "loss"), ("grad_norm", "ES-N03", "gradient norm"))


def _loss_not_finite(point: Point, at: float, rank: int | None) -> Finding | None:
    if point.loss is None or math.isfinite(point.loss) or point.skipped:
        return None
    return _finding("ES-N01", f"the loss became {point.loss}{_step(point)}.", Confidence.HIGH, at, rank)


def _norms_not_finite(row: int, point: Point, at: float, rank: int | None) -> Finding | None:
    if row != ROW:
        return None
    text = f"the gradient norm is {point.grad_norm} for {ROW} steps in a row{_step(point)}, the loss is finite."
    return _finding("ES-N01", text, Confidence.MEDIUM, at, rank)


def _jump(points: Sequence[Point], at: float) -> Finding | None:
    for name, code, what in _JUMPS:
        series = [(p, value) for p in points if (value := getattr(p, name)) is not None and math.isfinite(value)]
        for index in range(MIN_BASELINE, len(series)):
            point, value = series[index]
            level = statistics.median(abs(v) for _, v in series[max(0, index - BASELINE_STEPS) : index])
            if level <= 0 or value <= JUMP * level:
                continue
            stays = index + 1 < len(series) and series[index + 1][1] > JUMP * level
            text = _jumped(what, value, level, point) + (", and stays there." if stays else ".")
            return _finding(code, text, Confidence.MEDIUM if stays or name == "loss" else Confidence.LOW, at, None)
    return None


def _jumped(what: str, value: float, level: float, point: Point) -> str:
    return f"the {what} jumped to {value:.4g}{_step(point)}, {value / level:.1f} times its level of {level:.4g}"


def _step(point: Point) -> str:
    return f" at step {point.step}" if point.step is not None else ""


def _finding(code: str, text: str, confidence: Confidence, at: float, rank: int | None) -> Finding:
    # The rank that logged it is not a suspect: ranks log the mean of all.
    evidence = Evidence(at=at, source="log", says=text, rank=rank)
    return Finding(code=code, sentence=text, confidence=confidence, evidence=(evidence,))


def course_of(losses: Sequence[float]) -> str:
    """`, the loss falls from 3.41 to 2.84`; empty where too few were logged to compare."""
    if len(losses) < LEAST_POINTS:
        return ""
    part = max(1, len(losses) // 3)
    first, last = statistics.median(losses[:part]), statistics.median(losses[-part:])
    if abs(last - first) <= 0.01 * abs(first):
        return f", the loss stays at {last:.4g}"
    return f", the loss {'falls' if last < first else 'rises'} from {losses[0]:.4g} to {losses[-1]:.4g}"
