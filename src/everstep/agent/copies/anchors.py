"""Anchors: steps that every rank copies and keeps alike, so that there is always one that all have.

Pushes of different ranks end at different times, and memory holds the last few steps only: without a rule, the copies
of a lost node's ranks could be of a step that no survivor holds any more. So some steps are anchors, the same for all
ranks without communication: the one with which the generation began, and each that is digested. An anchor goes before
anything newer; a peer keeps the newest that is complete, and a rank the one before until the newest is complete at its
peer and half the way to the next one is done, which is the time that slower ranks have. Pure.
"""

from everstep.core.state.policy import Policy

EVERY_WITHOUT_DIGESTS = 64
"""A power of two, so that these are among the steps that ranks keep where they do not keep each
(`worker.snapshots.cadence`)."""


class Anchors:
    """The anchors of one generation."""

    def __init__(self, policy: Policy) -> None:
        self.every = policy.digest_every or EVERY_WITHOUT_DIGESTS
        self.first = 0

    def begin(self, resume_step: int | None) -> None:
        """The step with which all ranks begin: the restored one, or the first one that they do."""
        self.first = 0 if resume_step is None else resume_step

    def includes(self, step: int) -> bool:
        return step == self.first or (step > self.first and (step + 1) % self.every == 0)

    def may_go(self, before: int, newest: int, step: int) -> bool:
        """Whether the anchor `before` is not needed any more, now that `newest` is complete at the peer and the rank
        has done `step`."""
        return before < newest and step >= newest + self.every // 2
