"""The table of the job's collectives, folded from what the agents report in each round. It concludes nothing.

In memory; the controller leaves it in the run directory after each round, where `everstep collectives` reads it.
"""

from collections.abc import Callable, Mapping

from everstep.analyzer.collective.figures import Table
from everstep.analyzer.collective.folding import Folding
from everstep.core.state.schema import State
from everstep.model.collective import RankOps
from everstep.model.observations import RoundReported


class CollectiveDetector:
    def __init__(self, ahead_s: Callable[[State], Mapping[int, float]]) -> None:
        self._ahead_s = ahead_s
        self._folding = Folding()
        self._open: dict[int, RankOps] = {}
        self._generation = -1
        self._round = -1
        self._at = 0.0
        self._is_new = False

    def take(self, event: object, state: State) -> tuple[()]:
        if not isinstance(event, RoundReported):
            return ()
        if event.generation != self._generation or event.round != self._round:
            self._close(state)
            self._generation, self._round = event.generation, event.round
        self._at = event.at
        self._open |= {each.rank: each for each in event.collectives if each.rank in state.workers}
        if 0 < state.tally.alive <= len(self._open):
            self._close(state)
        return ()

    def _close(self, state: State) -> None:
        """Close the round: all ranks are in it, or the next one has begun."""
        streams, self._open = self._open, {}
        if any(each.ops for each in streams.values()):
            self._folding.add(
                streams.values(),
                at=self._at,
                generation=self._generation,
                world_size=len(state.workers),
                ahead_s=self._ahead_s(state),
            )
            self._is_new = True

    def newest(self) -> Table | None:
        """Once; None where nothing has come since."""
        if not self._is_new:
            return None
        self._is_new = False
        return self._folding.table()
