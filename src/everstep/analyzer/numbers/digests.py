"""Digests of parameters across data-parallel replicas: which replica holds something else. Pure.

Replicas start equal and apply the same update, so after each step they are equal bit by bit, or something computed
wrongly. With three or more the one that differs is named exactly; with two only that they differ.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from everstep.analyzer.observations.finding import Finding
from everstep.analyzer.observations.records import ParallelGroup
from everstep.analyzer.observations.words import ranks_text, verb
from everstep.model.facts import RankDigest
from everstep.model.verdict import Blame, Confidence, Evidence

MAX_NAMED = 8

FEW = 3
"""Of fewer parameters it says nothing that all of them differ."""

MANY = 8
"""Of fewer it says nothing that the same one differs twice."""


Digest = RankDigest


def compare(
    digests: Sequence[Digest], replicas: ParallelGroup, at: float, *, were_equal: bool = True
) -> Finding | None:
    """Compare at the newest step for which two replicas of the group sent a digest. None: they agree, or too few sent
    one.

    A rank that sent none for that step is neither right nor wrong. `were_equal`: they have been seen equal before;
    otherwise no rank is known to have computed wrongly, and the job itself may be made so.
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
    if not were_equal:
        return _never_equal(held, replicas, step, at)
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
    sentence = (
        f"{ranks_text(ranks)} {verb(ranks, 'holds', 'hold')} other parameters than the {count} replicas that agree at "
        f"step {step}: {_named(held[ranks[0]].values, usual)}"
    )
    finding = Finding(
        code="ES-N04",
        sentence=f"{sentence}.",
        confidence=Confidence.HIGH,
        ranks=ranks,
        group=replicas,
        evidence=evidence,
    )
    if not all(_differs_whole(held[rank].values, usual) for rank in ranks):
        return finding
    doubt = "all that it holds: a machine's fault, or lines of the program that not every rank runs"
    return msgspec.structs.replace(
        finding, sentence=f"{sentence}; {doubt}.", confidence=Confidence.MEDIUM, blame=Blame.UNKNOWN
    )


class Apart(msgspec.Struct, frozen=True):
    """In what one replica differed from the others after a step."""

    step: int
    wrong: dict[str, str]  # parameter or range of them -> digest; none where it was missing
    num_names: int
    usual: int  # hash of what the others held


def apart(mine: Digest, usual: Digest) -> Apart:
    names = sorted({*mine.values, *usual.values})
    wrong = {name: mine.values.get(name, "") for name in names if mine.values.get(name) != usual.values.get(name)}
    return Apart(mine.step, wrong, len(names), hash(tuple(sorted(usual.values.items()))))


def come_again(before: Sequence[Apart], now: Apart) -> bool:
    """Whether a replica is wrong as it was before the steps were done again.

    Where the others hold bit by bit what they held then, its own bits are compared. They do not where its error differs
    (it reaches them through the gradients), nor in a run that never computes the same twice: that leaves the names of
    what is wrong. Chance rarely hits the same one of many."""
    same = [each for each in before if each.step == now.step and each.usual == now.usual]
    if same:
        return any(each.wrong == now.wrong for each in same)
    return now.num_names >= MANY and any(each.wrong.keys() == now.wrong.keys() for each in before)


def _differs_whole(mine: Mapping[str, str], usual: Mapping[str, str]) -> bool:
    """Whether every parameter differs, or some are of other names. A bit that flips, and most errors of a device,
    change one of them."""
    return mine.keys() != usual.keys() or (len(usual) >= FEW and all(mine[name] != usual[name] for name in usual))


def _undecided(held: Mapping[int, Digest], replicas: ParallelGroup, step: int, num_kinds: int, at: float) -> Finding:
    ranks = tuple(sorted(held))
    first, *others = (held[rank].values for rank in ranks)
    different = next(other for other in others if other != first)
    return Finding(
        code="ES-N05",
        sentence=f"the replicas of {ranks_text(ranks)} differ at step {step} ({_named(first, different)}). "
        f"Which one is right is not known: {len(held)} of them hold {num_kinds} different states.",
        confidence=Confidence.LOW,
        ranks=ranks,
        group=replicas,
        evidence=(Evidence(at=at, source="digest", says=f"{num_kinds} different digests among {len(held)} replicas"),),
    )


def _never_equal(held: Mapping[int, Digest], replicas: ParallelGroup, step: int, at: float) -> Finding:
    kinds: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for rank, digest in sorted(held.items()):
        kinds.setdefault(tuple(sorted(digest.values.items())), []).append(rank)
    ordered = sorted(kinds.items(), key=lambda item: -len(item[1]))
    named = _named(dict(ordered[1][0]), dict(ordered[0][0]))
    listed = "; ".join(ranks_text(ranks) for _, ranks in ordered[:MAX_NAMED])
    says = f"equal among themselves: {listed}" + ("; ..." if len(ordered) > MAX_NAMED else "")
    return Finding(
        code="ES-N06",
        sentence=f"replicas differ at step {step} in {named}, and were never seen equal: {says}.",
        confidence=Confidence.LOW,
        ranks=(),
        group=replicas,
        evidence=(Evidence(at=at, source="digest", says=says),),
    )


def _named(mine: Mapping[str, str], usual: Mapping[str, str]) -> str:
    names = sorted(name for name in {*mine, *usual} if mine.get(name) != usual.get(name))
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
