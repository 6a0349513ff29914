"""Who is slow, against the others and against the job's own past; and when nobody may be blamed for it.

One round compares the ranks over some ten seconds: the straggler computes long and waits little, the others compute as
ever and wait for it. Five rounds vote (ByteRobust). What is not a machine's fault is refused with the reason: uneven
work, a long pipeline stage, garbage collection, data loading, or a job that was made so.

Pure. Called by the controller with what the progress probe measured.
"""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from everstep.analyzer import excuses
from everstep.analyzer.change import Change, find_change
from everstep.analyzer.groups import shared_by
from everstep.analyzer.records import ParallelGroup, RankTiming
from everstep.analyzer.words import ranks_text, seconds, verb
from everstep.model.verdict import Confidence, Refusal


class SlowPolicy(msgspec.Struct, frozen=True, kw_only=True):
    num_rounds: int = 5
    """ByteRobust's five rounds, ten seconds apart. One round flags whoever had the long batch just then."""

    min_flags: int = 4
    """Rounds in which a rank must be flagged. Three lets chance in on a noisy machine; five lets an intermittent
    fault out."""

    min_spreads: float = 4.0
    """How far out of the others' scatter (median absolute deviation) a rank's compute time must be."""

    min_share: float = 0.08
    """And how much of the median: below eight percent nobody is worth a restart."""

    excuse_share: float = 0.6
    """How much of the excess another cause must explain to excuse the machine."""


class SlowVerdict(msgspec.Struct, frozen=True, kw_only=True):
    code: str  # ES-S00 .. ES-S08
    sentence: str
    confidence: Confidence
    ranks: tuple[int, ...] = ()  # who causes it, most flagged first; also when it is excused
    group: ParallelGroup | None = None
    refusal: Refusal | None = None  # set: nobody is evicted, and why
    since_step: int | None = None


DEFAULT = SlowPolicy()


def flag_round(timings: Sequence[RankTiming], policy: SlowPolicy = DEFAULT) -> tuple[int, ...]:
    """Ranks that computed long and, where it is known, waited less than the others did. Longest first."""
    if len(timings) < 2:
        return ()
    flagged = [timing for timing in timings if _stands_out(timing, timings, policy)]
    return tuple(t.rank for t in sorted(flagged, key=lambda t: -t.compute_s))


def _stands_out(timing: RankTiming, timings: Sequence[RankTiming], policy: SlowPolicy) -> bool:
    others = [t for t in timings if t.rank != timing.rank]
    # The faster half of the others, so that a second slow rank in a small job does not hide the first. Its values lie
    # about half as far from their median as those of all, hence the 2.
    faster = sorted(t.compute_s for t in others)[: len(others) // 2 + 1]
    usual = statistics.median(faster)
    spread = 2 * 1.4826 * statistics.median(abs(compute_s - usual) for compute_s in faster)
    excess = timing.compute_s - usual
    if excess < policy.min_share * usual or excess < policy.min_spreads * spread:
        return False
    waits = [t.wait_s for t in others if t.wait_s is not None]
    return timing.wait_s is None or not waits or timing.wait_s < statistics.median(waits)


def judge(
    rounds: Sequence[Sequence[RankTiming]],
    groups: Sequence[ParallelGroup] = (),
    first_rounds: Sequence[Sequence[RankTiming]] = (),
    policy: SlowPolicy = DEFAULT,
) -> SlowVerdict:
    """Vote over the newest rounds. `first_rounds` are those of the generation's beginning: was it always so?"""
    rounds = rounds[-policy.num_rounds :]
    if len(rounds) < policy.num_rounds:
        return _fine(f"{len(rounds)} of {policy.num_rounds} rounds measured so far.")
    votes = Counter(rank for timings in rounds for rank in flag_round(timings, policy))
    if not votes:
        return _fine("no rank makes the others wait.")
    ranks = tuple(rank for rank, count in votes.most_common() if count >= policy.min_flags)
    if not ranks:
        listed = ", ".join(f"rank {rank} in {count}" for rank, count in votes.most_common(4))
        why = f"the longest rank changes from round to round ({listed} of {len(rounds)}): the work is uneven"
        return _refused("ES-S04", tuple(rank for rank, _ in votes.most_common(8)), why)
    means = excuses.mean_timings(rounds)
    excuse = excuses.find(ranks, means, groups, excuses.mean_timings(first_rounds), policy.excuse_share)
    if excuse:
        return _refused(excuse.code, ranks, excuse.why)
    return _straggler(ranks, votes, means, groups, len(rounds))


def _straggler(
    ranks: tuple[int, ...],
    votes: Counter[int],
    means: Mapping[int, RankTiming],
    groups: Sequence[ParallelGroup],
    num_rounds: int,
) -> SlowVerdict:
    usual = statistics.median(t.compute_s for rank, t in means.items() if rank not in ranks)
    share = means[ranks[0]].compute_s / usual - 1 if usual > 0 else 0.0
    group = shared_by(ranks, groups) if len(ranks) > 1 else None
    whole = group is not None and len(ranks) > 1
    named = f", all in {group.title}," if group else ""
    return SlowVerdict(
        code="ES-S02" if whole else "ES-S01",
        sentence=f"{ranks_text(ranks)}{named} {verb(ranks, 'computes', 'compute')} {share:.0%} longer than the others "
        f"({seconds(means[ranks[0]].compute_s)} against {seconds(usual)} per step), in {votes[ranks[0]]} of "
        f"{num_rounds} rounds; the others wait.",
        confidence=Confidence.HIGH if votes[ranks[0]] == num_rounds else Confidence.MEDIUM,
        ranks=ranks,
        group=group,
    )


def judge_history(step_s: Sequence[float], first_step: int = 0) -> SlowVerdict:
    """The job against its own past. A job that became faster is not slow."""
    change: Change | None = find_change(step_s)
    if change is None:
        return _fine(f"no change of level in {len(step_s)} steps.")
    if change.after < change.before:
        return _fine(f"steps became {-change.share:.0%} shorter at step {first_step + change.index}.")
    return SlowVerdict(
        code="ES-S03",
        sentence=f"steps take {change.share:.0%} longer since step {first_step + change.index}: "
        f"{seconds(change.after)}, before {seconds(change.before)}.",
        confidence=Confidence.HIGH if change.share > 0.1 else Confidence.MEDIUM,
        since_step=first_step + change.index,
    )


def _fine(why: str) -> SlowVerdict:
    return SlowVerdict(code="ES-S00", sentence=f"not slow: {why}", confidence=Confidence.MEDIUM)


def _refused(code: str, ranks: tuple[int, ...], why: str) -> SlowVerdict:
    what = f"evict the machine of {ranks_text(ranks)}"
    return SlowVerdict(
        code=code,
        sentence=f"{why}; nobody is evicted.",
        confidence=Confidence.MEDIUM,
        ranks=ranks,
        refusal=Refusal(what=what, why=why),
    )
