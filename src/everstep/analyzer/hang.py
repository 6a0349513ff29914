"""Is the job hung? Two silent signals of four, in a window that the job's own step times set.

Answers with a sentence, also when the answer is no. Does not say who is to blame: that is `combine`. Pure: the monitor
calls it once or several times a second with what its probes saw. docs/hang-rule.md explains each number.
"""

from collections.abc import Sequence

import msgspec

from everstep.analyzer.signals import Phase, RankSample, Rhythm, Signal, WaitsOn
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

    min_phase_s: float = 30.0
    """No window of an evaluation or a checkpoint is shorter: other than steps they differ by much from one to the next
    (a busy file server, another validation set), and there are few of them to learn from."""

    fallback_s: float = 300.0
    """Where the job has no history: Baige's fixed five minutes."""

    startup_s: float = 600.0
    """Start-up without history: imports from a cold disk, compiling, the first rendezvous. torch's own join timeout."""

    computing_s: float = 300.0
    """How long a rank that visibly computes may keep the others waiting before the hang is called all the same. The
    same five minutes: an evaluation that nobody announced is usually shorter."""

    outside_s: float = 30.0
    """How long a rank that waits for something outside of the job (a socket, a file, a timer) may keep the others
    waiting. Such waits mostly end by themselves; at the shortest window a store that answers late costs a restart, at
    five minutes a server that died costs five minutes."""

    min_silent: int = 2
    """Baige's two of four: one signal alone is silent in every healthy job now and then."""


class RankVerdict(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    hung: bool
    computing: bool
    waiting: bool  # for something outside of the job, and not for too long
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
    least_s = policy.min_window_s if phase is Phase.TRAIN else max(policy.min_window_s, policy.min_phase_s)
    return max(least_s, policy.stretch * known[-2 if is_freak else -1])


def judge_rank(sample: RankSample, rhythm: Rhythm, policy: HangPolicy = DEFAULT) -> RankVerdict:
    """One rank by its own signals."""
    window = window_s(rhythm, sample.phase, policy)
    ages = {signal: age for signal in Signal if (age := sample.silent_s(signal)) is not None}
    log_window = max(window, 2 * (sample.log_gap_s or 0.0))
    silent = tuple(signal for signal, age in ages.items() if age >= (log_window if signal is Signal.LOG else window))
    excuse = "" if _takes_part(sample, window) else _excuse(sample, silent)
    patience = {"": window, _COMPUTES: max(window, policy.computing_s), _WAITS: max(window, policy.outside_s)}[excuse]
    quiet_s = min((ages[signal] for signal in silent), default=0.0)
    ends_s = quiet_s + (sample.wait_left_s or 0.0) if excuse == _WAITS else quiet_s  # a timer says when it ends
    overdue = bool(excuse) and ends_s >= patience
    hung = len(silent) >= policy.min_silent and not sample.paused and (not excuse or overdue)
    return RankVerdict(
        rank=sample.rank,
        hung=hung,
        computing=excuse == _COMPUTES and not overdue,
        waiting=excuse == _WAITS and not overdue,
        silent=silent,
        known=tuple(ages),
        window_s=window,
        why=_why_rank(sample, silent, ages, window, excuse, overdue, policy),
    )


def _takes_part(sample: RankSample, window: float) -> bool:
    """It was in a collective lately: whatever it does, nobody waits for it. Half the window, because ages of ranks that
    came out of one collective differ by a look."""
    age = sample.silent_s(Signal.COMMUNICATION)
    return age is not None and age < window / 2


_COMPUTES, _WAITS = "computes", "waits"


def _excuse(sample: RankSample, silent: tuple[Signal, ...]) -> str:
    """It computes: its processor works, and its stack moves, cannot be seen, or waits for processes of its own which
    then are what works. A stack that stays while the processor works is a loop; a moving stack on an idle processor is
    a wait that polls. Or it waits for something outside of the job."""
    works = sample.silent_s(Signal.DEVICE) is not None and Signal.DEVICE not in silent
    if works and (Signal.STACK not in silent or sample.waits_on is WaitsOn.OWN):
        return _COMPUTES
    return _WAITS if sample.waits_on is WaitsOn.OUTSIDE else ""


def _why_rank(
    sample: RankSample,
    silent: tuple[Signal, ...],
    ages: dict[Signal, float],
    window: float,
    excuse: str,
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
    doing = sample.waits_for or "waits for something outside" if excuse == _WAITS else excuse
    limit = seconds(policy.computing_s if excuse == _COMPUTES else policy.outside_s)
    if overdue:
        return f"hung: {doing}, but longer than {limit}: {listed} silent{noted}"
    if excuse:
        return f"not hung: {doing}, although {listed} silent{noted}"
    return f"hung: {listed} silent, usual is below {seconds(window)}{noted}"


def judge(samples: Sequence[RankSample], rhythm: Rhythm, policy: HangPolicy = DEFAULT) -> HangVerdict:
    """The job: hung when a rank is, and no other rank has a reason to take long, for which the rest just waits."""
    verdicts = tuple(judge_rank(sample, rhythm, policy) for sample in samples)
    hung = tuple(verdict.rank for verdict in verdicts if verdict.hung)
    longest = max((verdict.window_s for verdict in verdicts), default=policy.fallback_s)
    why_not = _why_not(samples, verdicts, policy)
    is_hung = bool(hung) and not why_not
    return HangVerdict(
        hung=is_hung,
        ranks=hung if is_hung else (),
        window_s=longest,
        why=_why_job(verdicts, hung, why_not),
        by_rank=verdicts,
    )


def _why_not(samples: Sequence[RankSample], verdicts: Sequence[RankVerdict], policy: HangPolicy) -> str:
    """Who has a reason to keep the others waiting; empty when nobody has."""
    paused = [sample.rank for sample in samples if sample.paused]
    working = [verdict.rank for verdict in verdicts if verdict.computing]
    if paused:
        return f"{ranks_text(paused)} {verb(paused, 'is', 'are')} paused by a debugger"
    if working:
        return f"{ranks_text(working)} {verb(working, 'computes', 'compute')}: a long step"
    for sample, verdict in zip(samples, verdicts, strict=True):
        if verdict.waiting:
            return f"rank {sample.rank} {sample.waits_for}, which may take up to {seconds(policy.outside_s)}"
        if sample.phase is not Phase.TRAIN and not verdict.hung:
            return f"rank {sample.rank} is in {sample.phase}, where up to {seconds(verdict.window_s)} are usual"
    return ""


def _why_job(verdicts: tuple[RankVerdict, ...], hung: tuple[int, ...], why_not: str) -> str:
    if not verdicts:
        return "not hung: no rank was looked at"
    if not hung:
        reasons = {verdict.why.removeprefix("not hung: ") for verdict in verdicts}
        return f"not hung: {verdicts[0].why.removeprefix('not hung: ')}" + (
            " (others differ)" if len(reasons) > 1 else ""
        )
    if why_not:
        return f"not hung: {ranks_text(hung)} {verb(hung, 'is', 'are')} silent, but {why_not}"
    first = next(verdict for verdict in verdicts if verdict.hung)
    return f"hung: ranks {fold(hung)} of {len(verdicts)} ({first.why.removeprefix('hung: ')})"
