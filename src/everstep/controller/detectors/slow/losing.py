"""Watches for a link that loses so much that the job hardly makes a step. Feeds rounds to `slowness.links.losing`.

It evicts no node. A rank with explained slowness is not named again.
"""

import logging
from collections import deque

from everstep.analyzer.hangs.links import Between, Pair, pairs_of
from everstep.analyzer.slowness.links.losing import NUM_ROUNDS, Losing, Way, find_losing
from everstep.controller.detectors.links import LinkReports
from everstep.controller.detectors.slow.ballot import MAX_BACK, MAX_SENT
from everstep.controller.detectors.slow.slowness import CONNECTIONS, SlownessDetector
from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.core.state.schema import State
from everstep.model.events import AnomalyFound
from everstep.model.facts import RankRound
from everstep.model.observations import RoundReported
from everstep.model.verdict import Blame, Confidence, Evidence, Verdict

CODE = "ES-S11"
MIN_EARLIER, MAX_EARLIER = 4, 30
"""Rounds that give the usual number of steps."""

LOSES = (Between.LOSSY, Between.PARTIAL, Between.ONE_WAY, Between.CUT)

log = logging.getLogger("everstep.controller")


class LossyLinkDetector:
    def __init__(self, policy: Policy, links: LinkReports, slowness: SlownessDetector) -> None:
        """`slowness`: receives the ranks that this detector explains, and knows those that are explained already."""
        self._round_s, self._is_on = policy.slow_round_s, policy.watch_slowness
        self._links, self._slowness = links, slowness
        self._generation = self._number = -1
        self._open: dict[int, RankRound] = {}
        self._rounds: deque[list[Way]] = deque(maxlen=NUM_ROUNDS)
        self._earlier: deque[int] = deque(maxlen=MAX_EARLIER)  # steps of each round before those

    def take(self, event: object, state: State) -> tuple[AnomalyFound, ...]:
        if not self._is_on or not isinstance(event, RoundReported):
            return ()
        if event.generation != self._generation:
            self._generation, self._number, self._open = event.generation, event.round, {}
            self._rounds.clear()
            self._earlier.clear()
        if event.round < self._number - MAX_BACK:
            self._number, self._open = event.round, {}  # a clock was set back
        if event.round < self._number:
            return ()
        found: tuple[AnomalyFound, ...] = ()
        if event.round > self._number:
            found = self._closed(event.at, state)
            self._number, self._open = event.round, {}
        self._open |= {each.rank: each for each in event.ranks}
        return found

    def _closed(self, at: float, state: State) -> tuple[AnomalyFound, ...]:
        """Judge the last round: it is complete, or never will be."""
        ways = [
            Way(rank=rank, share=_share(each), lost=each.lost, num_steps=each.num_steps)
            for rank, each in self._open.items()
        ]
        if len(self._rounds) == NUM_ROUNDS:
            self._earlier.append(max((way.num_steps for way in self._rounds[0]), default=0))
        self._rounds.append(ways)
        if state.phase is not Phase.RUNNING or state.incident is not None or len(self._earlier) < MIN_EARLIER:
            return ()
        pairs = self._lossy(state, at)
        nodes = {node for pair in pairs for node in (pair.one, pair.other)}
        candidates = {rank for rank, worker in state.workers.items() if worker.node in nodes}
        usual_per_s = sum(self._earlier) / len(self._earlier) / self._round_s
        found = find_losing(list(self._rounds), self._round_s, usual_per_s, candidates)
        if found is None or not self._slowness.note_explained(found.rank, CODE, at):
            return ()
        node = state.workers[found.rank].node
        return (self._told(found, [pair for pair in pairs if node in (pair.one, pair.other)], at),)

    def _lossy(self, state: State, at: float) -> list[Pair]:
        sight = self._links.sight(state, at)
        nodes = {worker.node for worker in state.workers.values()}
        return [] if sight is None else [pair for pair in pairs_of(sight, nodes) if pair.state in LOSES]

    def _told(self, found: Losing, pairs: list[Pair], at: float) -> AnomalyFound:
        links = [f"{pair.one} and {pair.other}: {pair.why}" for pair in pairs]
        sent = self._open[found.rank].sent[:MAX_SENT] if found.rank in self._open else ""
        verdict = Verdict(
            code=CODE,
            sentence=f"{found.says}; between {links[0]}: a link loses data, and the rank's computing is not slow.",
            blame=Blame.NETWORK,
            confidence=Confidence.MEDIUM,
            ranks=(found.rank,),
            at=at,
            evidence=(
                Evidence(at=at, source=CONNECTIONS, says=sent or found.says, rank=found.rank),
                *(Evidence(at=at, source="link", says=says) for says in links),
            ),
        )
        return AnomalyFound(at=at, generation=self._generation, verdict=verdict)


def _share(each: RankRound) -> float | None:
    """Agents are not trusted."""
    return each.send_share if each.send_share is not None and 0.0 <= each.send_share <= 1.0 else None
