"""The job's parallel groups, as its ranks declare them in the rounds of the fail-slow vote.

Reported when every live rank has declared its groups, and again when there are more; not when the brain knows them
already, as after most restarts. Groups of one rank, and the whole job, do not affect which nodes are evicted together.
"""

from everstep.core.state.schema import State
from everstep.model.events import GroupsLearned
from everstep.model.facts import RankGroup
from everstep.model.observations import RoundReported

MAX_RANKS = 4_000_000
"""In all groups together, on record. More is no job of today."""


class GroupDetector:
    def __init__(self) -> None:
        self._generation = -1
        self._round = -1
        self._titles: dict[tuple[int, ...], str] = {}
        self._heard: set[int] = set()
        self._num_told = 0

    def take(self, event: object, state: State) -> tuple[GroupsLearned, ...]:
        if not isinstance(event, RoundReported):
            return ()
        if event.generation != self._generation:
            self._begin(event.generation)
        is_new_round, self._round = event.round > self._round >= 0, max(self._round, event.round)
        # Report additions only when a round is over: its groups arrive node by node.
        found = self._tell(event.at, state) if is_new_round and self._num_told else ()
        for rank in event.ranks:
            self._heard.add(rank.rank)
            for name, members in rank.groups.items():
                self._note(tuple(sorted(set(members))), rank.titles.get(name) or name, state)
        return found or (() if self._num_told else self._tell(event.at, state))

    def _begin(self, generation: int) -> None:
        self._generation, self._round, self._num_told = generation, -1, 0
        self._titles.clear()
        self._heard.clear()

    def _note(self, ranks: tuple[int, ...], title: str, state: State) -> None:
        if 1 < len(ranks) < len(state.workers) and all(rank in state.workers for rank in ranks):
            self._titles.setdefault(ranks, title)

    def _tell(self, at: float, state: State) -> tuple[GroupsLearned, ...]:
        live = {rank for rank, worker in state.workers.items() if worker.exit is None}
        if len(self._titles) <= self._num_told or not live <= self._heard:
            return ()
        self._num_told = len(self._titles)
        groups = tuple(RankGroup(title=title, ranks=ranks) for ranks, title in sorted(self._titles.items()))
        if groups == state.groups or sum(len(group.ranks) for group in groups) > MAX_RANKS:
            return ()
        return (GroupsLearned(at=at, generation=self._generation, groups=groups),)
