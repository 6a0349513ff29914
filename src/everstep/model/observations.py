"""Raw observations of running ranks, for the watches. They come several times a second and are never on record: only
what is concluded from them is (`events`)."""

from typing import TypeAlias

import msgspec

from everstep.model.collective import RankOps
from everstep.model.facts import LinkSeen, PortSeen, RankCounts, RankDigest, RankNumbers, RankRound, Signals


class Happened(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=True):
    """Base of all events."""

    at: float  # seconds since the epoch, on the observer's clock


class SignalsReported(Happened, frozen=True, kw_only=True):
    """Signals of a node's live ranks, as its probes see them. For the hang rule; never on record."""

    node: str
    generation: int
    signals: tuple[Signals, ...]


class LinksReported(Happened, frozen=True, kw_only=True):
    """A node's view of all its links to other nodes, sent when one of them or a port has changed. For verdicts on
    hangs; never on record."""

    node: str
    generation: int
    links: tuple[LinkSeen, ...]
    ports: tuple[PortSeen, ...] = ()  # of this node, of the last ten seconds


class NumbersReported(Happened, frozen=True, kw_only=True):
    """Losses and gradient norms of a node's ranks. Never on record."""

    node: str
    generation: int
    numbers: tuple[RankNumbers, ...]


class DigestsReported(Happened, frozen=True, kw_only=True):
    """Digests of what a node's ranks hold. Never on record."""

    node: str
    generation: int
    digests: tuple[RankDigest, ...]
    counts: tuple[RankCounts, ...] = ()  # of the same kind: what replicas must have in common


class RoundReported(Happened, frozen=True, kw_only=True):
    """A node's part in a round of the fail-slow vote. `round` is the same number on all nodes: wall-clock seconds
    divided by the policy's `slow_round_s`. Never on record."""

    node: str
    generation: int
    round: int
    ranks: tuple[RankRound, ...]
    collectives: tuple[RankOps, ...] = ()  # what they entered since the round before, also of ranks that do not vote


Observation: TypeAlias = SignalsReported | LinksReported | NumbersReported | DigestsReported | RoundReported

UNRECORDED = (SignalsReported, LinksReported, NumbersReported, DigestsReported, RoundReported)
