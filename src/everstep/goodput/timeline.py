"""One rank's time, cut into spans without holes or overlaps. That the sum is right lies in the form, not in care.

The cursor only moves forward. A mark that lies before it (clocks went backwards, reports of two machines disagree)
moves nothing; if it contradicts the rank's own earlier mark, as much of the following time is `not_measured`.
"""

import math

import msgspec

from everstep.goodput.buckets import Bucket

Shares = tuple[tuple[Bucket, float], ...]


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """`shares` are fractions that add up to 1. Times are seconds since the begin of the run."""

    begin_s: float
    end_s: float
    shares: Shares
    incident: str | None = None

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s


class Timeline:
    def __init__(self, begun_at: float, until: float) -> None:
        self.spans: list[Span] = []
        self.incident: str | None = None  # whose cost the following spans are
        self._begun_at = begun_at
        self._end_s = max(0.0, until - begun_at)
        self._cursor_s = 0.0
        self._own_mark_s = 0.0
        self._doubtful_s = 0.0

    @property
    def now(self) -> float:
        """Where the cursor stands."""
        return self._begun_at + self._cursor_s

    def spend(self, until: float | None, bucket: Bucket) -> None:
        """Everything up to a time of the run's (fault, decision) goes into this bucket."""
        self.share(until, ((bucket, 1.0),))

    def share(self, until: float | None, shares: Shares, incident: str | None = None) -> None:
        end_s = self._clip(until)
        if end_s is None or end_s <= self._cursor_s:
            return
        if self._doubtful_s > 0.0:
            doubtful_end_s = min(end_s, self._cursor_s + self._doubtful_s)
            self._doubtful_s = 0.0
            self._add(doubtful_end_s, ((Bucket.NOT_MEASURED, 1.0),), self.incident)
        if end_s > self._cursor_s:
            self._add(end_s, shares, incident or self.incident)

    def mark(self, at: float | None) -> None:
        """Note a mark of the rank's own, before time is spent up to it. It should not lie before an earlier one."""
        if at is None or not math.isfinite(at):
            return
        at_s = at - self._begun_at
        if at_s < self._own_mark_s:
            self._doubtful_s += self._own_mark_s - at_s
        self._own_mark_s = at_s

    def finish(self, bucket: Bucket) -> None:
        self.share(self._begun_at + self._end_s, ((bucket, 1.0),))
        if self._cursor_s < self._end_s:  # the last bit is lost in adding and subtracting the epoch
            self._add(self._end_s, ((bucket, 1.0),), self.incident)

    def _clip(self, at: float | None) -> float | None:
        if at is None or not math.isfinite(at):
            return None
        return min(at - self._begun_at, self._end_s)

    def _add(self, end_s: float, shares: Shares, incident: str | None) -> None:
        self.spans.append(Span(begin_s=self._cursor_s, end_s=end_s, shares=shares, incident=incident))
        self._cursor_s = end_s


def carve(spans: list[Span], begin_s: float, end_s: float) -> list[Span]:
    """Return the same spans, with everything between the two times `not_measured`."""
    out: list[Span] = []
    for span in spans:
        left_end_s, right_begin_s = (
            max(span.begin_s, min(begin_s, span.end_s)),
            min(span.end_s, max(end_s, span.begin_s)),
        )
        if right_begin_s <= left_end_s:
            out.append(span)
            continue
        middle = Span(begin_s=left_end_s, end_s=right_begin_s, shares=((Bucket.NOT_MEASURED, 1.0),))
        before = msgspec.structs.replace(span, end_s=left_end_s)
        after = msgspec.structs.replace(span, begin_s=right_begin_s)
        out += [part for part in (before, middle, after) if part.length_s > 0.0]
    return out
