"""Digests of parameters across data-parallel replicas: which replica holds something else. Pure.

Replicas start equal and apply the same update, so after each step they are equal bit by bit, or something computed
wrongly. With three or more the one that differs is named exactly; with two only that they differ.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from everstep.analyzer.finding import Finding
from everstep.analyzer.records import ParallelGroup
from everstep.analyzer.words import ranks_text, verb
from everstep.model.verdict import Confidence, Evidence

MAX_NAMED = 8


class Digest(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank holds after a step: a digest per parameter (or one for all, under any name)."""

    rank: int
    step: int
    values: Mapping[str, str]


def compare(digests: Sequence[Digest], replicas: ParallelGroup, at: float) -> Finding | None:
    """At the newest step for which two replicas of the group gave a digest. None: they agree, or too few gave one.

    A rank that gave none for that step is neither right nor wrong.
    """
    members = [digest for digest in digests if digest.rank in replicas.ranks]
    steps = Counter(digest.step for digest in members)
    step = max((step for step, count in steps.items() if count > 1), default=None)
    if step is None:
        return None
    held = {digest.rank: digest for digest in members if digest.step == step}
    whole = {rank: tuple(sorted(digest.values.items())) for rank, digest in held.items()}
    ranking = Counter(whole.values()).most_common()
    if len(ranking) == 1:
        return None
    right, count = ranking[0]
    if 2 * count <= len(held):
        return _undecided(held, replicas, step, len(ranking), at)
    ranks = tuple(sorted(rank for rank, value in whole.items() if value != right))
    usual = dict(right)
    evidence = tuple(
        Evidence(
            at=at, source="digest", says=f"differs at step {step} in {_named(held[rank].values, usual)}", rank=rank
        )
        for rank in ranks[:MAX_NAMED]
    )
    return Finding(
        code="ES-N04",
        sentence=f"{ranks_text(ranks)} {verb(ranks, 'holds', 'hold')} other parameters than the {count} replicas that "
        f"agree at step {step}: {_named(held[ranks[0]].values, usual)}.",
        confidence=Confidence.HIGH,
        ranks=ranks,
        group=replicas,
        evidence=evidence,
    )


def _undecided(held: Mapping[int, Digest], replicas: ParallelGroup, step: int, num_kinds: int, at: float) -> Finding:
    ranks = tuple(sorted(held))
    first, *others = (held[rank].values for rank in ranks)
    different = next(other for other in others if other != first)
    return Finding(
        code="ES-N05",
        sentence=f"the replicas of {ranks_text(ranks)} differ at step {step} ({_named(first, different)}), and that "
        f"does not tell which is right: {len(held)} of them hold {num_kinds} different states.",
        confidence=Confidence.LOW,
        ranks=ranks,
        group=replicas,
        evidence=(Evidence(at=at, source="digest", says=f"{num_kinds} different digests among {len(held)} replicas"),),
    )


def _named(mine: Mapping[str, str], usual: Mapping[str, str]) -> str:
    names = sorted(name for name in {*mine, *usual} if mine.get(name) != usual.get(name))
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
