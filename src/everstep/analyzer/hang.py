"""Is the job hung? Two silent signals of four, in a window that the job's own step times set.

Answers with a sentence, also when the answer is no. Does not say who is to blame: that is `combine`. Pure: the monitor
calls it once or several times a second with what its probes saw. docs/hang-rule.md explains each number.
"""

from collections.abc import Sequence

import msgspec

from everstep.analyzer.signals import Phase, RankSample, Rhythm, Signal
from everstep.analyzer.words import fold, ranks_text, seconds, verb


class HangPolicy(msgspec.Struct, frozen=True, kw_only=True):
    min_window_s: float = 2.0
    """No window is shorter. At one second a full garbage collection or a busy machine looks like a hang; at five, a
    job of 100 ms steps loses fifty of them."""

    stretch: float = 4.0
    """The window is this many times the longest usual step. 2 cries at the first slow step; 10 makes a 5 s step wait
    a minute."""

    freak: float = 2.0
    """A longest step of more than this many times the second longest is a freak and does not set the window: one
    stall in the past must not blind the rule. What comes twice is usual: evaluation every k steps, for instance."""

    min_steps: int = 10
    """Fewer steps than this are no distribution: the fallback holds. Steps 1-3 compile, allocate and connect."""

    min_phases: int = 1
    """One evaluation or checkpoint already says how long one takes; the stretch covers the next one's difference."""

    fallback_s: float = 300.0
    """Where the job has no history: Baige's fixed five minutes."""

    startup_s: float = 600.0
    """Start-up without history: imports from a cold disk, compiling, the first rendezvous. torch's own join timeout."""

    computing_s: float = 300.0
    """How long a rank that visibly computes may keep the others waiting before the hang is called all the same. The
    same five minutes: an evaluation that nobody announced is usually shorter."""

    min_silent: int = 2
    """Baige's two of four: one signal alone is silent in every healthy job now and then."""


class RankVerdict(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    hung: bool
    computing: bool
    silent: tuple[Signal, ...]
    known: tuple[Signal, ...]
    window_s: float
    why: str


class HangVerdict(msgspec.Struct, frozen=True, kw_only=True):
    hung: bool
    ranks: tuple[int, ...]  # hung by their own signals: culprit and victims alike
    window_s: float  # the longest that was applied
    why: str
    by_rank: tuple[RankVerdict, ...]


DEFAULT = HangPolicy()


def window_s(rhythm: Rhythm, phase: Phase, policy: HangPolicy = DEFAULT) -> float:
    """How long a silence of one phase is still usual."""
    known = sorted(rhythm.of(phase))
    enough = policy.min_steps if phase is Phase.TRAIN else policy.min_phases
    if len(known) < enough:
        return policy.startup_s if phase is Phase.STARTUP else policy.fallback_s
    is_freak = len(known) > 1 and phase is Phase.TRAIN and known[-1] > policy.freak * known[-2]
    return max(policy.min_window_s, policy.stretch * known[-2 if is_freak else -1])


def judge_rank(sample: RankSample, rhythm: Rhythm, policy: HangPolicy = DEFAULT) -> RankVerdict:
    """One rank by its own signals."""
    window = window_s(rhythm, sample.phase, policy)
    ages = {signal: age for signal in Signal if (age := sample.silent_s(signal)) is not None}
    log_window = max(window, 2 * (sample.log_gap_s or 0.0))
    silent = tuple(signal for signal, age in ages.items() if age >= (log_window if signal is Signal.LOG else window))
    computing = _computes(sample, silent)
    patience = max(window, policy.computing_s) if computing else window
    overdue = computing and all(ages[signal] >= patience for signal in silent)
    hung = len(silent) >= policy.min_silent and not sample.paused and (not computing or overdue)
    return RankVerdict(
        rank=sample.rank,
        hung=hung,
        computing=computing and not overdue,
        silent=silent,
        known=tuple(ages),
        window_s=window,
        why=_why_rank(sample, silent, ages, window, computing, overdue, policy),
    )


def _computes(sample: RankSample, silent: tuple[Signal, ...]) -> bool:
    """Its processor works, and its stack moves or cannot be seen. A stack that stays while the processor works is a
    loop; a moving stack on an idle processor is a wait that polls."""
    works = sample.silent_s(Signal.DEVICE) is not None and Signal.DEVICE not in silent
    return works and Signal.STACK not in silent


def _why_rank(
    sample: RankSample,
    silent: tuple[Signal, ...],
    ages: dict[Signal, float],
    window: float,
    computing: bool,
    overdue: bool,
    policy: HangPolicy,
) -> str:
    unknown = [str(signal) for signal in Signal if signal not in ages]
    noted = f" ({', '.join(unknown)} not known)" if unknown else ""
    listed = ", ".join(f"{signal} {seconds(ages[signal])}" for signal in silent)
    if sample.paused:
        return f"not hung: paused by a debugger{noted}"
    if len(silent) < policy.min_silent:
        quiet = f"only {listed} silent" if silent else "nothing silent"
        return f"not hung: {quiet} within {seconds(window)}{noted}; {policy.min_silent} are needed"
    if overdue:
        return f"hung: computes, but longer than {seconds(policy.computing_s)}: {listed} silent{noted}"
    if computing:
        return f"not hung: computes, although {listed} silent{noted}"
    return f"hung: {listed} silent, usual is below {seconds(window)}{noted}"


def judge(samples: Sequence[RankSample], rhythm: Rhythm, policy: HangPolicy = DEFAULT) -> HangVerdict:
    """The job: hung when a rank is, and no other rank has a reason to take long, for which the rest just waits."""
    verdicts = tuple(judge_rank(sample, rhythm, policy) for sample in samples)
    hung = tuple(verdict.rank for verdict in verdicts if verdict.hung)
    working = [verdict.rank for verdict in verdicts if verdict.computing]
    paused = [sample.rank for sample in samples if sample.paused]
    longest = max((verdict.window_s for verdict in verdicts), default=policy.fallback_s)
    busy: list[tuple[int, Phase]] = [
        (sample.rank, sample.phase)
        for sample, verdict in zip(samples, verdicts, strict=True)
        if sample.phase is not Phase.TRAIN and not verdict.hung and not verdict.computing
    ]
    is_hung = bool(hung) and not working and not paused and not busy
    return HangVerdict(
        hung=is_hung,
        ranks=hung if is_hung else (),
        window_s=longest,
        why=_why_job(verdicts, hung, working, paused, busy),
        by_rank=verdicts,
    )


def _why_job(
    verdicts: tuple[RankVerdict, ...],
    hung: tuple[int, ...],
    working: list[int],
    paused: list[int],
    busy: list[tuple[int, Phase]],
) -> str:
    if not verdicts:
        return "not hung: no rank was looked at"
    if not hung:
        reasons = {verdict.why.removeprefix("not hung: ") for verdict in verdicts}
        return f"not hung: {verdicts[0].why.removeprefix('not hung: ')}" + (
            " (others differ)" if len(reasons) > 1 else ""
        )
    waiting = f"{ranks_text(hung)} {verb(hung, 'is', 'are')} silent"
    if paused:
        return f"not hung: {waiting}, but {ranks_text(paused)} {verb(paused, 'is', 'are')} paused by a debugger"
    if working:
        return f"not hung: {waiting}, but {ranks_text(working)} {verb(working, 'computes', 'compute')}: a long step"
    if busy:
        rank, phase = busy[0]
        window = next(verdict.window_s for verdict in verdicts if verdict.rank == rank)
        return f"not hung: {waiting}, but rank {rank} is in {phase}, where up to {seconds(window)} are usual"
    first = next(verdict for verdict in verdicts if verdict.hung)
    return f"hung: ranks {fold(hung)} of {len(verdicts)} ({first.why.removeprefix('hung: ')})"
