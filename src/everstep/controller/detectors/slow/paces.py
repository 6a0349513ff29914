"""The newest rounds of the fail-slow vote, for people: how slow each rank was, and when. It draws no conclusion.

Kept in memory; after each round the controller writes it to the run directory, where the pages read it.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median

from everstep.analyzer.observations.records import ParallelGroup, RankTiming
from everstep.journal.beside.paces import PaceRound, Paces

NUM_ROUNDS = 60
MAX_RANKS = 256
"""Ranks to list of a larger job, slowest first: 12,500 rows are unreadable, and are written every ten seconds."""

RECENT = 5
MESH = ("pp", "dp", "cp", "ep", "tp")
"""Outermost first: a fault of one machine or one stage lines up as a block."""


class PaceHistory:
    """The step times of one generation."""

    def __init__(self) -> None:
        self._generation = -1
        self._rounds: deque[tuple[float, dict[int, RankTiming]]] = deque(maxlen=NUM_ROUNDS)
        self._node_of: dict[int, str] = {}
        self._groups: Sequence[ParallelGroup] = ()
        self._is_new = False

    def begin(self, generation: int) -> None:
        self._generation = generation
        self._rounds.clear()

    def note(
        self, at: float, timings: Sequence[RankTiming], node_of: Mapping[int, str], groups: Sequence[ParallelGroup]
    ) -> None:
        """Add a closed round."""
        self._rounds.append((at, {timing.rank: timing for timing in timings}))
        self._node_of, self._groups = dict(node_of), groups
        self._is_new = True

    def newest(self) -> Paces | None:
        """The history, if a round has come since the last call; else None."""
        if not self._is_new or not self._rounds:
            return None
        self._is_new = False
        order, ranks = in_mesh_order(self._slowest(), self._groups)
        last = self._rounds[-1][1]
        known = [last.get(rank) for rank in ranks]
        return Paces(
            generation=self._generation,
            num_ranks=len(self._node_of),
            num_measured=len(last),
            order=order,
            ranks=tuple(ranks),
            nodes=tuple(self._node_of.get(rank, "") for rank in ranks),
            wait_s=tuple(None if timing is None else timing.wait_s for timing in known),
            data_s=tuple(None if timing is None else timing.data_s for timing in known),
            rounds=tuple(_round(at, found, ranks) for at, found in self._rounds),
        )

    def _slowest(self) -> list[int]:
        if len(self._node_of) <= MAX_RANKS:
            return sorted(self._node_of)  # also ranks without data
        ranks = sorted({rank for _, found in self._rounds for rank in found})
        recent = [found for _, found in list(self._rounds)[-RECENT:]]

        def mean_s(rank: int) -> float:
            known = [found[rank].compute_s for found in recent if rank in found]
            return fmean(known) if known else 0.0

        return sorted(sorted(ranks, key=mean_s)[-MAX_RANKS:])


def in_mesh_order(ranks: Iterable[int], groups: Iterable[ParallelGroup]) -> tuple[str, list[int]]:
    """The ordering as text, and the ordered ranks. A rank's coordinate is its place in its group of that kind."""
    places: dict[str, dict[int, int]] = {}
    for group in groups:
        if group.kind in MESH and group.complete:
            places.setdefault(group.kind, {}).update({rank: place for place, rank in enumerate(group.ranks)})
    axes = [kind for kind in MESH if kind in places]
    ordered = sorted(ranks, key=lambda rank: (*(places[axis].get(rank, -1) for axis in axes), rank))
    return (" x ".join(axes) if axes else "rank"), ordered


def _round(at: float, found: Mapping[int, RankTiming], ranks: Sequence[int]) -> PaceRound:
    usual_s = median(timing.compute_s for timing in found.values()) if found else 0.0
    values = (found.get(rank) for rank in ranks)
    return PaceRound(
        at=round(at, 1),
        usual_s=usual_s,
        compute_s=tuple(None if each is None else float(f"{each.compute_s:.4g}") for each in values),
    )
