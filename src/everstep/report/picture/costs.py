"""Goodput for a screen: exact where that is cheap, of a sample of ranks where a fleet is too large to be asked every
second. Pure."""

from collections.abc import Mapping

from everstep.goodput.buckets import Bucket
from everstep.goodput.figures import Goodput, goodput_of, ratios_of
from everstep.goodput.history import History
from everstep.journal.history import Sample, history_of, sampled, sampled_generation
from everstep.journal.view import RunView
from everstep.report.parts.json_values import Json

EXACT = 20_000
"""Ranks times generations that are counted one by one: some 50 ms."""

SAMPLED = 4
"""Ranks, evenly over the job, of a larger one."""

GROUPS = {
    "productive": (Bucket.PRODUCTIVE,),
    "redone": (Bucket.REDONE,),
    "recovery": (Bucket.DETECT, Bucket.DIAGNOSE, Bucket.SCHEDULE, Bucket.INITIALISE, Bucket.RESTORE),
    "checkpoint": (Bucket.CHECKPOINT_STALL,),
    "idle": (Bucket.IDLE,),
    "not measured": (Bucket.NOT_MEASURED,),
}
"""What a bar shows. All buckets are in one of them."""


class Costs:
    """Caches what cannot change any more, for repeated looks."""

    def __init__(self) -> None:
        self._sample: Sample | None = None

    def goodput(self, view: RunView, now: float | None) -> Goodput:
        return goodput_of(self._history(view, now))

    def ratios(self, view: RunView, now: float | None, windows_s: Mapping[str, float]) -> dict[str, float | None]:
        return ratios_of(self._history(view, now), windows_s)

    def _history(self, view: RunView, now: float | None) -> History:
        sample = self._sample_of(view)
        return history_of(view, now) if sample is None else sampled(view, sample, now)

    def settle(self, view: RunView, index: int) -> None:
        """A generation that has ended for good is looked at once."""
        sample = self._sample_of(view)
        if sample is not None and index + 2 < len(view.generations):  # what may still change is not kept
            sampled_generation(view, index, sample)

    def _sample_of(self, view: RunView) -> Sample | None:
        """None: all ranks are counted."""
        num_ranks = view.spec.world_size if view.spec is not None else 0
        if num_ranks * max(1, len(view.generations)) <= EXACT:
            return None
        if self._sample is None:
            self._sample = Sample(ranks=tuple(num_ranks * k // SAMPLED for k in range(SAMPLED)))
        return self._sample

    def row(self, view: RunView, now: float | None) -> Json:
        return goodput_row(view, self.goodput(view, now))


def goodput_row(view: RunView, goodput: Goodput) -> Json:
    """Shares of all time, by cause; they sum to 1."""
    whole_s = goodput.wall_s * goodput.num_ranks
    num_ranks = view.spec.world_size if view.spec is not None else 0
    seconds = {name: sum(goodput.seconds[bucket] for bucket in buckets) for name, buckets in GROUPS.items()}
    return {
        "ettr": goodput.ettr,
        "wall_s": goodput.wall_s,
        "window_s": goodput.window_s,
        "window_ettr": goodput.window_ettr,
        "shares": {name: value / whole_s if whole_s > 0 else None for name, value in seconds.items()},
        "sampled_ranks": goodput.num_ranks if goodput.num_ranks < num_ranks else None,
    }
