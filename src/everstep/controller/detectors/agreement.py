"""The steps after which all replicas held the same. Only such a step can be trusted.

Every live rank must have taken part, and be equal to its replicas. A missing digest, a rank without replicas, an
undecidable group or lost numbers prove nothing, and nothing is reported. A step is reported at once or never: a late
report is about a step whose snapshot may be gone, and would cost the one that is kept.
"""

import math
from collections.abc import Callable

import msgspec

from everstep.controller.detectors.digests import MAX_ENDED, DigestDetector
from everstep.core.state.schema import State
from everstep.model.events import AnomalyFound, ReplicasAgreed
from everstep.model.observations import DigestsReported

INTERVAL_S = 5.0
"""Between two on record; each costs every node a message. Longer: a corruption costs a few steps more."""

INTERVAL_PER_NODE_S = 0.1


class AgreementDetector:
    def __init__(
        self, digests: DigestDetector, *, every: int = 1, are_numbers_lost: Callable[[float], bool] = lambda at: False
    ) -> None:
        """`digests` has seen each report before this watch does. `every`: policy digest_every. The first step of a
        generation is digested as well, but no rank keeps its snapshot until it is known whether it can be trusted."""
        self._digests = digests
        self._every = max(1, every)
        self._are_numbers_lost = are_numbers_lost
        self._generation = -1
        self._told_at = -math.inf
        self._told = -1  # step

    def take(self, event: object, state: State) -> tuple[ReplicasAgreed, ...]:
        if not isinstance(event, DigestsReported):
            return ()
        if event.generation != self._generation:
            self._generation, self._told_at, self._told = event.generation, -math.inf, -1
        interval_s = max(INTERVAL_S, INTERVAL_PER_NODE_S * len(state.active_nodes))
        if 0 <= event.at - self._told_at < interval_s or self._are_numbers_lost(event.at):
            return ()
        for step in sorted({digest.step for digest in event.digests}, reverse=True):
            if step > self._told and (step + 1) % self._every == 0 and self._is_agreed(step, state):
                self._told_at, self._told = event.at, step
                return (ReplicasAgreed(at=event.at, generation=event.generation, step=step),)
        return ()

    def date(self, found: AnomalyFound, state: State) -> AnomalyFound:
        """Add the newest step after which all agreed, even if it was not reported: going back to it costs less. Its
        snapshots, and older ones that are kept, are still there as a rule."""
        steps = (step for step in self._digests.equal_steps() if (step + 1) % self._every == 0)
        agreed = next((step for step in steps if self._is_agreed(step, state)), None)
        return msgspec.structs.replace(found, agreed_step=agreed)

    def _is_agreed(self, step: int, state: State) -> bool:
        equal = self._digests.equal_at(step)
        if not equal or len(equal) + MAX_ENDED < len(state.workers):
            return False  # looked at with every report of thousands: quick where it cannot be
        return all(rank in equal for rank, worker in state.workers.items() if worker.exit is None)
