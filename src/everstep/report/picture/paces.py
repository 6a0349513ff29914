"""Step times over a run as rows of 32 points, for repeated looks: of 512 intervals one changes. Pure."""

from everstep.journal.pace import Interval, Pace
from everstep.report.parts.json_values import Json

CHUNK = 32


class PaceRows:
    def __init__(self) -> None:
        self._made_of: tuple[float | None, float] = None, 0.0
        self._points: dict[int, tuple[int, list[float]]] = {}  # interval -> how many step times it is of, its point
        self._rows: dict[str, Json] = {}

    def rows(self, pace: Pace) -> dict[str, Json]:
        """`pace:0`, `pace:1`, ...; a row in which nothing changed is the same object as before."""
        made_of = pace.begun_at, pace.width_s
        if made_of != self._made_of:
            self._made_of, self._points, self._rows = made_of, {}, {}
        points = [self._point(pace, index) for index in sorted(pace.bins)]
        found: dict[str, Json] = {}
        for first in range(0, len(points), CHUNK):
            key, some = f"pace:{first // CHUNK}", points[first : first + CHUNK]
            kept = self._rows.get(key)
            is_same = kept is not None and kept["points"] == some
            found[key] = kept if kept is not None and is_same else {"width_s": pace.width_s, "points": some}
        self._rows = found
        return found

    def _point(self, pace: Pace, index: int) -> list[float]:
        """Step times are added to an interval, and never taken away: as many are the same."""
        num = sum(pace.bins[index].values())
        kept = self._points.get(index)
        if kept is None or kept[0] != num:
            kept = self._points[index] = num, _point(pace.interval(index))
        return kept[1]


def _point(interval: Interval) -> list[float]:
    return [round(interval.begin, 1), _short(interval.median_s), _short(interval.p99_s)]


def _short(value: float) -> float:
    """Four digits: the histogram knows no more."""
    return float(f"{value:.4g}")
