"""The detectors of a running job. Each draws conclusions from raw observations, and only the conclusions are recorded.

A detector keeps what it has seen in memory; a new controller learns it anew. A fault in a detector costs that
detector's opinion on one report, and nothing else.
"""

import logging
from collections.abc import Sequence
from typing import Protocol, TypeAlias

import msgspec

from everstep.controller.detectors.agreement import AgreementDetector
from everstep.controller.detectors.collectives import CollectiveDetector
from everstep.controller.detectors.counts import CountDetector
from everstep.controller.detectors.digests import DigestDetector
from everstep.controller.detectors.groups import GroupDetector
from everstep.controller.detectors.hangs import HangDetector
from everstep.controller.detectors.links import LinkReports
from everstep.controller.detectors.losses import LossNotes
from everstep.controller.detectors.numbers import NumberDetector
from everstep.controller.detectors.slow.losing import LossyLinkDetector
from everstep.controller.detectors.slow.slowness import SlownessDetector
from everstep.core.restore.trust import DIFFERENT
from everstep.core.state.policy import Policy
from everstep.core.state.schema import State
from everstep.model.events import (
    AnomalyFound,
    GroupsLearned,
    HangSuspected,
    LossNoted,
    ReplicasAgreed,
    StandstillEnded,
)
from everstep.model.observations import (
    Observation,
)

Found: TypeAlias = HangSuspected | StandstillEnded | AnomalyFound | ReplicasAgreed | LossNoted | GroupsLearned

log = logging.getLogger("everstep.controller")


class Detector(Protocol):
    def take(self, event: Observation, state: State) -> Sequence[Found]:
        """Look at one report; what it leads to. Reports of other kinds are not for this watch."""
        ...


class Detectors:
    def __init__(self, policy: Policy) -> None:
        self.hangs = HangDetector(policy)
        self.slowness = SlownessDetector(policy)
        self.collectives = CollectiveDetector(self.slowness.ahead_s)
        self.links = LinkReports()
        numbers = NumberDetector(policy)
        counts = CountDetector()
        digests = DigestDetector(counts, are_numbers_lost=numbers.is_lost)
        self._agreement = AgreementDetector(digests, every=policy.digest_every, are_numbers_lost=numbers.is_lost)
        self._told_of: set[str] = set()  # nodes that spoke for ranks of others
        self._all: tuple[Detector, ...] = (
            self.hangs,
            self.links,
            numbers,
            counts,  # before the digests: what a rank left out is no machine's doing
            digests,
            self._agreement,
            LossNotes(),
            GroupDetector(),
            self.slowness,
            LossyLinkDetector(policy, self.links, self.slowness),
            self.collectives,
        )

    def take(self, event: Observation, state: State) -> list[Found]:
        """Return what the detectors conclude from one report of the current generation."""
        if event.generation != state.generation or not state.is_active(event.node):
            return []
        own = _of_own_ranks(event, state)
        if own is not event and event.node not in self._told_of:
            self._told_of.add(event.node)
            log.warning("%s of %s names ranks that it does not run; left out", type(event).__name__, event.node)
        event = own
        found: list[Found] = []
        for watch in self._all:
            try:
                found += [self._dated(each, state) for each in watch.take(event, state)]
            except Exception:
                log.exception("%s failed on a %s of %s", type(watch).__name__, type(event).__name__, event.node)
        return found

    def _dated(self, found: Found, state: State) -> Found:
        differs = isinstance(found, AnomalyFound) and found.verdict.code in DIFFERENT
        return self._agreement.date(found, state) if differs and isinstance(found, AnomalyFound) else found


_BY_RANK = ("signals", "numbers", "digests", "counts", "ranks", "collectives")
"""Fields of observations that say something of one rank after the other."""


def _of_own_ranks(event: Observation, state: State) -> Observation:
    """A node speaks for the ranks that it runs: of others it can know nothing."""

    def is_own(rank: int) -> bool:
        worker = state.workers.get(rank)
        return worker is not None and worker.node == event.node

    said = {name: getattr(event, name) for name in _BY_RANK if hasattr(event, name)}
    own = {name: tuple(each for each in listed if is_own(each.rank)) for name, listed in said.items()}
    if all(len(own[name]) == len(listed) for name, listed in said.items()):
        return event
    return msgspec.structs.replace(event, **own)
