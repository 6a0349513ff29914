"""How long steps took over a whole run, in bounded memory: at most 512 intervals, each a histogram of step times.

Noted by `fold` for each rank and report; read by `report.picture`. When a run outgrows its intervals, each two become
one. The histogram's bins are 2 % wide, so that is how exact a median or a 99th percentile is.
"""

import math

import msgspec

MAX_INTERVALS = 512
FIRST_WIDTH_S = 4.0
_BINS_PER_E = 50


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds per step, over all ranks and reports of the interval."""

    begin: float
    median_s: float
    p99_s: float
    num: int


class Pace(msgspec.Struct, kw_only=True):
    begun_at: float | None = None
    width_s: float = FIRST_WIDTH_S
    bins: dict[int, dict[int, int]] = {}  # interval -> bin -> number

    def note(self, at: float, step_s: float) -> None:
        """One rank's mean step time between two reports."""
        if not (math.isfinite(at) and 0.0 < step_s < 1e9):
            return
        if self.begun_at is None:
            self.begun_at = at
        while (index := max(0, int((at - self.begun_at) / self.width_s))) >= MAX_INTERVALS:
            self._widen()
        found = self.bins.setdefault(index, {})
        place = round(math.log(step_s) * _BINS_PER_E)
        found[place] = found.get(place, 0) + 1

    def note_since(self, since: float | None, at: float, step_s: float) -> None:
        """The mean of one rank between two reports that lie far apart: every interval between them had it."""
        if since is None or not (math.isfinite(since) and math.isfinite(at) and 0.0 < step_s < 1e9):
            return
        while since < at - self.width_s:
            self.note(since, step_s)
            since += self.width_s

    def intervals(self) -> list[Interval]:
        """The intervals with a reported step time, in order."""
        return [self.interval(index) for index in sorted(self.bins)]

    def totals(self) -> list[tuple[float, int]]:
        """(seconds per step, how often it was reported) over the whole run."""
        totals: dict[int, int] = {}
        for found in self.bins.values():
            for place, number in found.items():
                totals[place] = totals.get(place, 0) + number
        return [(math.exp(place / _BINS_PER_E), number) for place, number in totals.items()]

    def median_s(self, begin: float, end: float) -> float | None:
        """The median over all intervals that touch this time; None: nothing was reported then."""
        if self.begun_at is None:
            return None
        found: dict[int, int] = {}
        for index, bins in self.bins.items():
            at = self.begun_at + index * self.width_s
            if at < end and at + self.width_s > begin:
                for place, number in bins.items():
                    found[place] = found.get(place, 0) + number
        return _quantile(found, 0.5, sum(found.values())) if found else None

    def interval(self, index: int) -> Interval:
        found = self.bins[index]
        begin = (self.begun_at or 0.0) + index * self.width_s
        num = sum(found.values())
        return Interval(begin=begin, median_s=_quantile(found, 0.5, num), p99_s=_quantile(found, 0.99, num), num=num)

    def _widen(self) -> None:
        merged: dict[int, dict[int, int]] = {}
        for index, found in self.bins.items():
            into = merged.setdefault(index // 2, {})
            for place, number in found.items():
                into[place] = into.get(place, 0) + number
        self.bins, self.width_s = merged, 2 * self.width_s


def _quantile(found: dict[int, int], share: float, num: int) -> float:
    wanted, seen = max(1, math.ceil(share * num)), 0
    for place in sorted(found):
        seen += found[place]
        if seen >= wanted:
            return math.exp(place / _BINS_PER_E)
    return math.exp(max(found) / _BINS_PER_E)
