"""A job that stands still, and ranks that had left it before: values, and the verdict on a rank that ended too early.

Pure; for `exits`, which judges all facts together.
"""

from collections.abc import Mapping, Sequence

import msgspec

from everstep.model.verdict import Blame, Certainty, Confidence, Evidence, Verdict


class Hang(msgspec.Struct, frozen=True, kw_only=True):
    """The job stood still. `verdict`: what the evidence said, once it has been looked at."""

    at: float  # last sign of progress
    ranks: tuple[int, ...]  # silent ones
    says: str
    verdict: Verdict | None = None
    window_s: float = 0.0  # longest silence that would have been usual
    limit_s: float | None = None  # of the collectives that ranks wait in; None: not known


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that had ended with exit code 0 before the fault, while others went on."""

    rank: int
    at: float
    step: int | None  # the last one that it did


def is_of_left(left: Sequence[Left], hang: Hang) -> bool:
    """Whether the others wait only for ranks that have ended."""
    gone = {each.rank for each in left}
    return hang.verdict is not None and hang.verdict.code != "ES-H00" and set(hang.verdict.ranks) <= gone


def left_verdict(
    left: Sequence[Left], nodes: Mapping[int, str], evidence: tuple[Evidence, ...], *, is_hang: bool
) -> Verdict:
    """The others needed a rank that had ended well, by its own account."""
    first = min(left, key=lambda each: each.at)
    step = "" if first.step is None else f" after step {first.step}"
    others = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
    seen = "they wait for it" if is_hang else "what they say is that a connection was closed"
    return Verdict(
        code="ES-H17",
        sentence=f"rank {first.rank}{others} ended with exit code 0{step} while the others still needed it; {seen}",
        blame=Blame.USER,
        confidence=Confidence.HIGH,
        ranks=tuple(each.rank for each in left),
        node=nodes.get(first.rank),
        at=first.at,
        place=f"exit code 0{step}",
        certainty=Certainty.CERTAIN,
        because=f"rank {first.rank} has ended, and cannot answer",
        evidence=evidence,
    )
