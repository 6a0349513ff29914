"""Loss and gradient norm: not a number, or a jump to five times their own level (ByteRobust's figure). Pure."""

import math
import statistics
from collections.abc import Sequence

import msgspec

from everstep.analyzer.finding import Finding
from everstep.model.verdict import Confidence, Evidence

JUMP = 5.0
BASELINE_STEPS = 64
"""The level is the median of so many earlier steps: a median, so that one spike does not raise it."""
MIN_BASELINE = 8
"""Fewer steps are no level: the first losses of a training fall fast."""
ROW = 3
"""Gradient norms that must be infinite in a row. With loss scaling single ones are usual: the step is skipped."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One logged step. None: not in the line."""

    step: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    step_s: float | None = None
    skipped: bool = False  # the framework skipped the update, as loss scaling does


def judge_numbers(points: Sequence[Point], at: float, rank: int | None = None) -> Finding | None:
    """The first thing that went wrong in a series, oldest point first. None: nothing did."""
    return _not_finite(points, at, rank) or _jump(points, at, rank)


def _not_finite(points: Sequence[Point], at: float, rank: int | None) -> Finding | None:
    row = 0
    for point in points:
        if point.loss is not None and not math.isfinite(point.loss) and not point.skipped:
            return _finding("ES-N01", f"the loss became {point.loss}{_step(point)}.", Confidence.HIGH, at, rank)
        bad = point.grad_norm is not None and not math.isfinite(point.grad_norm) and not point.skipped
        row = row + 1 if bad else 0
        if row == ROW:
            text = f"the gradient norm is {point.grad_norm} for {ROW} steps in a row{_step(point)}, the loss is finite."
            return _finding("ES-N01", text, Confidence.MEDIUM, at, rank)
    return None


def _jump(points: Sequence[Point], at: float, rank: int | None) -> Finding | None:
    for name, code, what in (("loss", "ES-N02", "loss"), ("grad_norm", "ES-N03", "gradient norm")):
        series = [(p, value) for p in points if (value := getattr(p, name)) is not None and math.isfinite(value)]
        for index in range(MIN_BASELINE, len(series)):
            point, value = series[index]
            level = statistics.median(abs(v) for _, v in series[max(0, index - BASELINE_STEPS) : index])
            if level <= 0 or value <= JUMP * level:
                continue
            stays = index + 1 < len(series) and series[index + 1][1] > JUMP * level
            text = f"the {what} jumped to {value:.4g}{_step(point)}, {value / level:.1f} times its level of {level:.4g}"
            text += ", and stays there." if stays else "."
            return _finding(code, text, Confidence.MEDIUM if stays or name == "loss" else Confidence.LOW, at, rank)
    return None


def _step(point: Point) -> str:
    return f" at step {point.step}" if point.step is not None else ""


def _finding(code: str, text: str, confidence: Confidence, at: float, rank: int | None) -> Finding:
    # The rank that logged it is not a suspect: ranks log the mean of all.
    evidence = Evidence(at=at, source="log", says=text, rank=rank)
    return Finding(code=code, sentence=text, confidence=confidence, evidence=(evidence,))
