"""Finds slow ranks, against the others and against the job's own past, and the cases in which no machine is to blame.

One round compares the ranks over some ten seconds: the straggler computes long and waits little, the others compute as
usual and wait for it. Five rounds vote (ByteRobust). Slowness that is not a machine's fault is refused with the reason:
uneven work, a long pipeline stage, garbage collection, data loading, or the design of the job.

Pure. The controller calls it with the measurements of the progress probe.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from everstep.analyzer.observations.groups import shared_by
from everstep.analyzer.observations.records import ParallelGroup, RankTiming
from everstep.analyzer.observations.words import per_step, ranks_text, verb
from everstep.analyzer.slowness import excuses
from everstep.analyzer.slowness.change import Change, find_change
from everstep.analyzer.slowness.places import Places, levelled, peers_of, places_of, rise_together, whole_pipeline
from everstep.model.verdict import Confidence, Refusal


class SlowLimits(msgspec.Struct, frozen=True, kw_only=True):
    num_rounds: int = 5
    """ByteRobust's five rounds, ten seconds apart. A single round flags the rank that had a long batch just then."""

    min_flags: int = 4
    """Rounds in which a rank must be flagged. With three, chance flags ranks on a noisy machine; with five, an
    intermittent fault is missed."""

    min_spreads: float = 4.0
    """Distance of a rank's compute time from the others', in units of their scatter (median absolute deviation)."""

    min_share: float = 0.08
    """Least excess as a share of the median: a rank below eight percent is not worth a restart."""

    min_errors: float = 3.0
    """Least excess in errors of the rank's mean, so that a round with few uneven steps flags no rank."""

    excuse_share: float = 0.6
    """Share of the excess that another cause must explain to excuse the machine."""


class SlowVerdict(msgspec.Struct, frozen=True, kw_only=True):
    code: str  # ES-S00 .. ES-S11
    sentence: str
    confidence: Confidence
    ranks: tuple[int, ...] = ()  # the ranks that cause it, most flagged first; also if excused
    group: ParallelGroup | None = None
    refusal: Refusal | None = None  # set: no node is evicted, and why
    since_step: int | None = None


DEFAULT = SlowLimits()
MANY = 64


def flag_round(timings: Sequence[RankTiming], policy: SlowLimits = DEFAULT) -> tuple[int, ...]:
    """Ranks that computed longer and, if known, waited less than the others did. Longest first."""
    if len(timings) < 2:
        return ()
    # Among many ranks, one does not move the median: compare with all ranks once, not each rank with all others.
    of_all = _Usual(timings) if len(timings) > MANY else None
    flagged = [t for t in timings if _stands_out(t, of_all or _Usual([o for o in timings if o is not t]), policy)]
    return tuple(t.rank for t in sorted(flagged, key=lambda t: -t.compute_s))


class _Usual:
    """The usual values among these timings."""

    def __init__(self, timings: Sequence[RankTiming]) -> None:
        # Take the faster half, so that a second slow rank in a small job does not hide the first. Its values lie about
        # half as far from their median as those of all ranks, hence the 2.
        faster = sorted(t.compute_s for t in timings)[: len(timings) // 2 + 1]
        self.compute_s = statistics.median(faster)
        self.spread_s = 2 * 1.4826 * statistics.median(abs(compute_s - self.compute_s) for compute_s in faster)
        waits = [t.wait_s for t in timings if t.wait_s is not None]
        self.wait_s = statistics.median(waits) if waits else None
        delays: defaultdict[str, list[float]] = defaultdict(list)
        for t in timings:
            if t.delay_s is not None and t.host:
                delays[t.host].append(t.delay_s)
        self._delay_s = {host: statistics.median(listed) for host, listed in delays.items()}
        # If all machines have more to run than CPUs, differences up to the wait for a CPU mean nothing.
        self.luck_s = min(self._delay_s.values(), default=0.0)

    def bad_luck_s(self, timing: RankTiming) -> float:
        """Seconds that it waited for a CPU beyond its neighbours on the same machine. Which of them gets a CPU first is
        chance; if all of them wait, the machine is to blame."""
        neighbours_s = self._delay_s.get(timing.host)
        if neighbours_s is None or timing.delay_s is None:
            return 0.0
        return max(0.0, timing.delay_s - neighbours_s)


def _stands_out(timing: RankTiming, usual: _Usual, policy: SlowLimits) -> bool:
    excess = timing.compute_s - usual.compute_s - usual.bad_luck_s(timing)
    share_s, spread_s = policy.min_share * usual.compute_s, policy.min_spreads * usual.spread_s
    if excess < max(share_s, spread_s, policy.min_errors * timing.error_s, usual.luck_s):
        return False
    return timing.wait_s is None or usual.wait_s is None or timing.wait_s < usual.wait_s


def judge(
    rounds: Sequence[Sequence[RankTiming]],
    groups: Sequence[ParallelGroup] = (),
    first_rounds: Sequence[Sequence[RankTiming]] = (),
    policy: SlowLimits = DEFAULT,
    *,
    from_arrivals: bool = False,
) -> SlowVerdict:
    """Vote over the newest rounds. `first_rounds`: those at the beginning of the generation, to see whether it was
    always so. `from_arrivals`: waits for a neighbour in the pipeline were measured as computing."""
    rounds = rounds[-policy.num_rounds :]
    if len(rounds) < policy.num_rounds:
        return _fine(f"{len(rounds)} of {policy.num_rounds} rounds measured so far.")
    first = excuses.mean_timings(first_rounds)
    places = places_of(groups, sorted({t.rank for timings in rounds for t in timings}))
    together = rise_together([{t.rank: t.compute_s for t in timings} for timings in rounds], places, first)
    flagged = [_flag_like(timings, places, first, policy, together=together) for timings in rounds]
    votes = Counter(rank for ranks in flagged for rank in ranks)
    ranks = tuple(rank for rank, count in votes.most_common() if count >= policy.min_flags)
    if not ranks and places:
        stage = _long_stage(rounds, groups, policy)
        if stage is not None:
            return stage
    if not ranks and sum(bool(each) for each in flagged) < policy.min_flags:
        return _fine("no rank makes the others wait round after round.")
    if not ranks:
        listed = ", ".join(f"rank {rank} in {count}" for rank, count in votes.most_common(4))
        why = f"the longest rank changes from round to round ({listed} of {len(rounds)}): the work is uneven"
        return _refused("ES-S04", tuple(rank for rank, _ in votes.most_common(8)), why)
    means = excuses.mean_timings(rounds)
    excuse = excuses.find(ranks, means, groups, first, policy.excuse_share)
    if excuse:
        return _refused(excuse.code, ranks, excuse.why)
    pipeline = whole_pipeline(ranks, groups) if from_arrivals else None
    if pipeline is not None:
        return _one_of(pipeline)
    theirs = [timings for timings, who in zip(rounds, flagged, strict=True) if ranks[0] in who]
    return _straggler(ranks, votes, excuses.mean_timings(theirs), groups, len(rounds))


def flag_like(timings: Sequence[RankTiming], groups: Sequence[ParallelGroup]) -> tuple[int, ...]:
    """Ranks of one round that are slow among those of the same place."""
    return _flag_like(timings, places_of(groups, [timing.rank for timing in timings]), {}, DEFAULT, together=False)


def _flag_like(
    timings: Sequence[RankTiming],
    places: Places,
    first: Mapping[int, RankTiming],
    policy: SlowLimits,
    *,
    together: bool,
) -> tuple[int, ...]:
    like, unknown = levelled(timings, places, first, together=together)
    return tuple(rank for rank in flag_round(like, policy) if rank not in unknown)


def _long_stage(
    rounds: Sequence[Sequence[RankTiming]], groups: Sequence[ParallelGroup], policy: SlowLimits
) -> SlowVerdict | None:
    """A verdict if one stage is longer than the others while no rank is slower than the other ranks of its stage."""
    votes = Counter(rank for timings in rounds for rank in flag_round(timings, policy))
    ranks = tuple(rank for rank, count in votes.most_common() if count >= policy.min_flags)
    excuse = excuses.long_stage(ranks, excuses.mean_timings(rounds), groups) if ranks else None
    return _refused(excuse.code, ranks, excuse.why) if excuse is not None else None


def _one_of(pipeline: ParallelGroup) -> SlowVerdict:
    """All ranks of a pipeline take as long as its slowest stage: naming all would evict healthy machines."""
    why = (
        f"one of {ranks_text(pipeline.ranks)} ({pipeline.title}) is slow: its whole pipeline takes longer than the "
        "others, and arrivals at collectives do not say which of them the rest waits for"
    )
    return _refused("ES-S02", (), why, pipeline)


def _straggler(
    ranks: tuple[int, ...],
    votes: Counter[int],
    means: Mapping[int, RankTiming],
    groups: Sequence[ParallelGroup],
    num_rounds: int,
) -> SlowVerdict:
    places = places_of(groups, sorted(means))
    peers = [rank for rank in peers_of(ranks[0], places, sorted(means)) if rank not in ranks]
    others = peers or [rank for rank in means if rank not in ranks]
    usual = statistics.median([means[rank].compute_s for rank in others] or [0.0])
    whom = "the others of their stage" if places and peers and len(ranks) > 1 else "the others"
    whom = "the other ranks of its stage" if places and peers and len(ranks) == 1 else whom
    share = means[ranks[0]].compute_s / usual - 1 if usual > 0 else 0.0
    group = shared_by(ranks, groups) if len(ranks) > 1 else None
    whole = group is not None and len(ranks) > 1
    named = f", all in {group.title}," if group else ""
    return SlowVerdict(
        code="ES-S02" if whole else "ES-S01",
        sentence=f"{ranks_text(ranks)}{named} {verb(ranks, 'computes', 'compute')} {share:.0%} longer than {whom} "
        f"({per_step(means[ranks[0]].compute_s)} against {per_step(usual)} per step), in {votes[ranks[0]]} of "
        f"{num_rounds} rounds; the others wait.",
        confidence=Confidence.HIGH if votes[ranks[0]] == num_rounds else Confidence.MEDIUM,
        ranks=ranks,
        group=group,
    )


def judge_history(step_s: Sequence[float], first_step: int = 0, steps: Sequence[int] = ()) -> SlowVerdict:
    """The job against its own past. A faster job is not slow. `steps`: step numbers, if they are not consecutive."""
    change: Change | None = find_change(step_s)
    if change is None:
        return _fine(f"no change of level in {len(step_s)} steps.")
    since_step = steps[change.index] if steps else first_step + change.index
    if change.after < change.before:
        return _fine(f"steps became {-change.share:.0%} shorter at step {since_step}.")
    return SlowVerdict(
        code="ES-S03",
        sentence=f"steps take {change.share:.0%} longer since step {since_step}: "
        f"{per_step(change.after)}, before {per_step(change.before)}.",
        confidence=Confidence.HIGH if change.share > 0.1 else Confidence.MEDIUM,
        since_step=since_step,
    )


def _fine(why: str) -> SlowVerdict:
    return SlowVerdict(code="ES-S00", sentence=f"not slow: {why}", confidence=Confidence.MEDIUM)


def _refused(code: str, ranks: tuple[int, ...], why: str, group: ParallelGroup | None = None) -> SlowVerdict:
    what = f"evict the machine of {ranks_text(ranks)}" if ranks else "evict a machine"
    return SlowVerdict(
        code=code,
        sentence=f"{why}; no node is evicted.",
        confidence=Confidence.MEDIUM,
        ranks=ranks,
        group=group,
        refusal=Refusal(what=what, why=why),
    )
