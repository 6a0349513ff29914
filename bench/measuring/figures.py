"""Measurements to figures: medians, ranges, ratios. Pure; what was not measured stays None and is never a
number.

A recovery that never came is infinitely long: it moves the median as it should, and only a majority of them
makes the median itself "never". Called by recovery.py, kills.py and overhead.py.
"""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

NEVER = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A sample in four figures. NEVER (infinity) is a legal value of each of the last three."""

    num: int
    num_never: int
    median: float
    least: float
    most: float


def spread(values: Sequence[float]) -> Spread | None:
    """None for an empty sample."""
    if not values:
        return None
    return Spread(
        num=len(values),
        num_never=sum(value == NEVER for value in values),
        median=statistics.median(values),
        least=min(values),
        most=max(values),
    )


def ratio(value: Spread | None, baseline: Spread | None) -> float | None:
    """Ratio of medians; None unless both were measured and finite."""
    if value is None or baseline is None or not (math.isfinite(value.median) and math.isfinite(baseline.median)):
        return None
    return value.median / baseline.median


def better(candidates: dict[str, Spread | None]) -> str | None:
    """The name with the lowest median; None when none was measured."""
    measured = {name: figures.median for name, figures in candidates.items() if figures is not None}
    return min(measured, key=measured.__getitem__, default=None)


def quantile(values: Sequence[float], share: float) -> float | None:
    """Nearest-rank quantile: always one of the values. None for an empty sample."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def interval_of_median(values: Sequence[float], *, seed: int = 0, resamples: int = 2000) -> tuple[float, float] | None:
    """95 % bootstrap interval of the median. None below three values, where it would say nothing."""
    if len(values) < 3:
        return None
    rng = random.Random(seed)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(resamples))
    return medians[int(0.025 * resamples)], medians[int(0.975 * resamples) - 1]


def seconds(value: float | None) -> str:
    """Three significant digits; "never" for infinity, an em dash for not measured."""
    if value is None:
        return "—"
    if value == NEVER:
        return "never"
    return f"{value:#.3g} s" if value < 100 else f"{value:.0f} s"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Plain text, first column left, the others right."""
    widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]
    lines = []
    for row in [headings, *rows]:
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "─" * max(len(line) for line in lines))
    return "\n".join(lines)
