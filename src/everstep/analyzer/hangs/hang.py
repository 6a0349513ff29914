"""Does the job stand still? Two silent signals of four, in a window that the job's own step times set.

Answers with a sentence, also when the answer is no. It only decides when the evidence is worth collecting: at once if
no rank has a reason to take long, a little later if one has (it works, or waits for something outside). `certainty`
decides whether it is a hang, `core.run.standstill` how long to wait then, `combine` which rank is to blame. Pure: the
monitor calls it once or several times a second with what its probes saw. docs/hang-rule.md explains each number.
"""

from collections.abc import Sequence

import msgspec

from everstep.analyzer.hangs.signals import Phase, RankSample, Rhythm, Signal, WaitsOn
from everstep.analyzer.observations.words import fold, ranks_text, seconds, verb


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

    finish_s: float = 60.0
    """After the loop the evidence is looked at after so long, or after what is long in this job: the last save and the
    last upload happen once, and nothing of the job says how long they take. What is doubtful has the fallback."""

    fallback_s: float = 300.0
    """Where the job has no history: Baige's fixed five minutes."""

    startup_s: float = 600.0
    """Start-up without history: imports from a cold disk, compiling, the first rendezvous. torch's own join timeout."""

    early_s: float = 20.0
    """While the job has no history, so long a silence is worth a look: what the evidence proves does not need one. What
    it does not prove has the patience of the fallback."""

    report_s: float = 5.0
    """After so long a standstill that has a reason is looked at as well. Nothing happens to the job."""

    computing_s: float = 300.0
    """The same if every rank computes, so that none is known to wait: a long step of all."""

    min_silent: int = 2
    """Baige's two of four: one signal alone is silent in every healthy job now and then."""


class RankVerdict(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    hung: bool
    computing: bool
    waiting: bool  # for something outside of the job
    silent: tuple[Signal, ...]
    known: tuple[Signal, ...]
    window_s: float
    why: str


class HangVerdict(msgspec.Struct, frozen=True, kw_only=True):
    hung: bool  # worth looking at the evidence
    culprit: int | None = None  # a rank that has a reason to keep the others waiting
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
    least = {Phase.TRAIN: 0.0, Phase.FINISH: policy.fallback_s}.get(phase, policy.min_phase_s)
    least_s = max(policy.min_window_s, least)
    return max(least_s, policy.stretch * known[-2 if is_freak else -1])


def look_s(rhythm: Rhythm, phase: Phase, policy: HangPolicy = DEFAULT) -> float:
    """After which silence the evidence is worth a look: the window, and sooner where it is only a guess."""
    window = window_s(rhythm, phase, policy)
    if phase is Phase.FINISH:
        return min(window, max(policy.finish_s, policy.stretch * max(rhythm.of(phase), default=0.0)))
    is_guess = phase is Phase.TRAIN and len(rhythm.of(phase)) < policy.min_steps
    return min(window, policy.early_s) if is_guess else window


def judge_rank(sample: RankSample, rhythm: Rhythm, policy: HangPolicy = DEFAULT) -> RankVerdict:
    """One rank by its own signals."""
    window = window_s(rhythm, sample.phase, policy)
    ages = {signal: age for signal in Signal if (age := sample.silent_s(signal)) is not None}
    look = look_s(rhythm, sample.phase, policy)
    log_window = max(look, 2 * (sample.log_gap_s or 0.0))
    silent = tuple(signal for signal, age in ages.items() if age >= (log_window if signal is Signal.LOG else look))
    excuse = "" if _takes_part(sample, look) else _excuse(sample, silent)
    return RankVerdict(
        rank=sample.rank,
        hung=len(silent) >= policy.min_silent and not sample.paused and not sample.busy and not excuse,
        computing=excuse == _COMPUTES,
        waiting=excuse == _WAITS,
        silent=silent,
        known=tuple(ages),
        window_s=window,
        why=_why_rank(sample, silent, ages, look, excuse, policy),
    )


def _takes_part(sample: RankSample, window: float) -> bool:
    """Whether it was in a collective lately: then no other rank waits for it. Half the window, because ages of ranks
    that came out of one collective differ by a look."""
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
    policy: HangPolicy,
) -> str:
    unknown = [str(signal) for signal in Signal if signal not in ages]
    noted = f" ({', '.join(unknown)} not known)" if unknown else ""
    listed = ", ".join(f"{signal} {seconds(ages[signal])}" for signal in silent)
    if sample.paused:
        return f"not hung: paused by a debugger{noted}"
    if sample.busy:
        return f"not hung: {sample.busy}{noted}"
    if excuse and silent:
        return f"{_does(sample, excuse)}, {listed} silent{noted}"
    if len(silent) < policy.min_silent:
        quiet = f"only {listed} silent" if silent else "nothing silent"
        return f"not hung: {quiet} within {seconds(window)}{noted}; {policy.min_silent} are needed"
    return f"hung: {listed} silent, usual is below {seconds(window)}{noted}"


def _does(sample: RankSample, excuse: str) -> str:
    return sample.waits_for or "waits for something outside" if excuse == _WAITS else excuse


def judge(samples: Sequence[RankSample], rhythm: Rhythm, policy: HangPolicy = DEFAULT) -> HangVerdict:
    """The job: worth a look when a rank is silent and none has a reason to take long, for which the rest just waits;
    where one has, only a little later."""
    verdicts = tuple(judge_rank(sample, rhythm, policy) for sample in samples)
    silent = tuple(verdict.rank for verdict in verdicts if verdict.hung)
    longest = max((verdict.window_s for verdict in verdicts), default=policy.fallback_s)
    why_not = _why_not(samples, verdicts)
    culprit = _culprit(verdicts)
    is_hung = bool(silent) and not why_not
    if not why_not and culprit is not None:
        least_s = policy.report_s if silent else _alone_s(verdicts, policy)
        looks = (look_s(rhythm, sample.phase, policy) for sample in samples)
        is_hung = _stood_s(samples, verdicts) >= max(*looks, least_s)
        why_not = "" if is_hung else _reason(samples, verdicts, culprit, policy)
    return HangVerdict(
        hung=is_hung,
        culprit=culprit.rank if is_hung and culprit is not None else None,
        ranks=tuple(v.rank for v in verdicts if v.hung or v.computing or v.waiting) if is_hung else (),
        window_s=longest,
        why=_why_job(samples, verdicts, silent, why_not, culprit if is_hung else None),
        by_rank=verdicts,
    )


def _culprit(verdicts: Sequence[RankVerdict]) -> RankVerdict | None:
    """The culprit: a rank that works before one that waits, as the others more likely wait for it."""
    return next((v for v in verdicts if v.computing), None) or next((v for v in verdicts if v.waiting), None)


def _alone_s(verdicts: Sequence[RankVerdict], policy: HangPolicy) -> float:
    """The patience if no rank is known to wait for another."""
    return policy.report_s if any(v.waiting for v in verdicts) else policy.computing_s


def _stood_s(samples: Sequence[RankSample], verdicts: Sequence[RankVerdict]) -> float:
    """For how long no rank has communicated; of one of which that is not known, its longest silence."""
    ages = []
    for sample, verdict in zip(samples, verdicts, strict=True):
        age = sample.silent_s(Signal.COMMUNICATION)
        known = [age for signal in verdict.silent if (age := sample.silent_s(signal)) is not None]
        ages.append(max(known, default=0.0) if age is None else age)
    return min(ages, default=0.0)


def _why_not(samples: Sequence[RankSample], verdicts: Sequence[RankVerdict]) -> str:
    """Return the reason why the rule does not look at all; empty if there is none."""
    paused = [sample.rank for sample in samples if sample.paused]
    if paused:
        return f"{ranks_text(paused)} {verb(paused, 'is', 'are')} paused by a debugger"
    busy = next((sample for sample in samples if sample.busy), None)
    if busy is not None:
        return f"rank {busy.rank} {busy.busy}"
    for sample, verdict in zip(samples, verdicts, strict=True):
        is_within = not any((age := sample.silent_s(s)) is not None and age >= verdict.window_s for s in Signal)
        if sample.phase is not Phase.TRAIN and not verdict.hung and is_within:
            return f"rank {sample.rank} is in {sample.phase}, where up to {seconds(verdict.window_s)} are usual"
    return ""


def _reason(
    samples: Sequence[RankSample], verdicts: Sequence[RankVerdict], culprit: RankVerdict, policy: HangPolicy
) -> str:
    working = [verdict.rank for verdict in verdicts if verdict.computing]
    if working:
        return f"{ranks_text(working)} {verb(working, 'computes', 'compute')}: a long step"
    sample = next(sample for sample in samples if sample.rank == culprit.rank)
    return f"rank {sample.rank} {_does(sample, _WAITS)}, which may take longer than {seconds(policy.report_s)}"


def _why_job(
    samples: Sequence[RankSample],
    verdicts: tuple[RankVerdict, ...],
    silent: tuple[int, ...],
    why_not: str,
    culprit: RankVerdict | None,
) -> str:
    if not verdicts:
        return "not hung: no rank was looked at"
    if culprit is not None:
        sample = next(sample for sample in samples if sample.rank == culprit.rank)
        does = _does(sample, _COMPUTES if culprit.computing else _WAITS)
        waiting = f"; {ranks_text(silent)} {verb(silent, 'is', 'are')} silent" if silent else ""
        return f"rank {culprit.rank} {does}{waiting}"
    if not silent:
        reasons = {verdict.why.removeprefix("not hung: ") for verdict in verdicts}
        return f"not hung: {verdicts[0].why.removeprefix('not hung: ')}" + (
            " (others differ)" if len(reasons) > 1 else ""
        )
    if why_not:
        return f"not hung: {ranks_text(silent)} {verb(silent, 'is', 'are')} silent, but {why_not}"
    first = next(verdict for verdict in verdicts if verdict.hung)
    return f"hung: ranks {fold(silent)} of {len(verdicts)} ({first.why.removeprefix('hung: ')})"
