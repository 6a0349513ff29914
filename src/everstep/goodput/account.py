"""A run's history to spans: where every second of every rank went. Pure; the definitions are in docs/goodput.md.

Rule of doubt: what is not known to have been productive is not productive, and what is not known at all is
`not_measured`, never zero and never guessed.
"""

from everstep.goodput.buckets import Bucket
from everstep.goodput.history import EndKind, GenerationHistory, History
from everstep.goodput.timeline import Shares, Span, Timeline, carve
from everstep.model.facts import RankAccount


def account_rank(history: History, rank: int) -> list[Span]:
    """The rank's spans, in order, without holes, from the begin of the run to `until`."""
    time = Timeline(history.begun_at, history.until)
    for index, generation in enumerate(history.generations):
        _spawn(time, generation, rank)
        if _is_spawned(generation, rank):
            _live(time, history, index, rank)
        if generation.ending is not None:
            _end(time, history, generation, rank)
    time.finish(_what_remains(history, rank))
    spans = time.spans
    for begin, end in history.gaps:
        spans = carve(spans, begin - history.begun_at, end - history.begun_at)
    return spans


def _is_spawned(generation: GenerationHistory, rank: int) -> bool:
    return rank in generation.accounts or rank in generation.spawned


def _spawn(time: Timeline, generation: GenerationHistory, rank: int) -> None:
    account = generation.accounts.get(rank)
    spawned_at = account.spawned_at if account is not None else generation.spawned.get(rank)
    time.spend(generation.formed_at if generation.formed_at is not None else spawned_at, Bucket.SCHEDULE)
    time.mark(spawned_at)
    time.spend(spawned_at, Bucket.INITIALISE)


def _live(time: Timeline, history: History, index: int, rank: int) -> None:
    """From the process to the end of its last known step, or to its end if it ended well."""
    generation = history.generations[index]
    account = generation.accounts.get(rank)
    if account is not None:
        begun_at = account.loop_at if account.loop_at is not None else account.first_step_at
        if begun_at is None and history.has_runtime and not history.reports_steps:
            begun_at = account.entered_at  # it never tells of a step: what follows is not measured
        if begun_at is not None:
            time.mark(begun_at)
            _initialise(time, account, begun_at)
            time.incident = None
        if account.first_step is not None:
            time.mark(account.last_step_at)
            _steps(time, history, index, account)
    done_at = generation.done_at.get(rank)
    if done_at is not None:
        stepped = account is not None and account.first_step is not None
        time.spend(done_at, Bucket.IDLE if stepped else Bucket.NOT_MEASURED)


def _initialise(time: Timeline, account: RankAccount, until: float) -> None:
    time.spend(until - max(0.0, account.restore_s), Bucket.INITIALISE)
    time.spend(until, Bucket.RESTORE)


def _steps(time: Timeline, history: History, index: int, account: RankAccount) -> None:
    until = account.last_step_at
    if until is None or until <= time.now:
        return
    begun_at, length_s = time.now, until - time.now
    stall = min(1.0, max(0.0, account.stall_s) / length_s)
    kept, redone = _kept_share(history, index, account)
    ending = history.generations[index].ending
    if kept is None:
        time.share(until, _with_stall(Bucket.NOT_MEASURED, stall))
        return
    time.share(begun_at + kept * length_s, _with_stall(Bucket.PRODUCTIVE, stall))
    if redone > 0.0:
        time.share(until, _with_stall(Bucket.REDONE, stall), ending.incident if ending else None)
    time.share(until, _with_stall(Bucket.PRODUCTIVE, stall))


def _with_stall(bucket: Bucket, stall: float) -> Shares:
    return ((bucket, 1.0 - stall), (Bucket.CHECKPOINT_STALL, stall)) if stall > 0.0 else ((bucket, 1.0),)


def _kept_share(history: History, index: int, account: RankAccount) -> tuple[float | None, float]:
    """Shares of the generation's step time that were kept and redone; (None, 0) if unknown."""
    later = history.generations[index + 1 :]
    if not later:
        return 1.0, 0.0
    if not account.counts_own_steps:
        return None, 0.0
    resumed = min((g.resumed_step for g in later if g.resumed_step is not None), default=None)
    first, last = account.first_step, account.last_step
    if resumed is None or first is None or last is None:
        return 1.0, 0.0
    num_lost = last - max(resumed, first) + 1
    num_timed = last - first + (1 if account.loop_at is not None else 0)  # else the first step counts as initialising
    redone = min(1.0, max(0, num_lost) / max(1, num_timed))
    return 1.0 - redone, redone


def _end(time: Timeline, history: History, generation: GenerationHistory, rank: int) -> None:
    """Spend the time of work that was begun and not finished, then the time until the fault was detected and decided
    about."""
    ending = generation.ending
    assert ending is not None
    before, time.incident = time.incident, ending.incident or time.incident
    if rank in generation.done_at or ending.kind is EndKind.DONE:
        time.spend(ending.at, Bucket.IDLE)
    else:
        account = generation.accounts.get(rank)
        bucket = _unfinished(history, generation, rank)
        if account is not None and bucket is Bucket.INITIALISE:
            time.spend(ending.at - max(0.0, account.restore_s), bucket)
            bucket = Bucket.RESTORE
        time.spend(ending.at, bucket)
    if ending.kind is EndKind.FAULT:
        time.spend(ending.detected_at, Bucket.DETECT)
        time.spend(ending.decided_at, Bucket.DIAGNOSE)
    else:
        time.incident = before


def _unfinished(history: History, generation: GenerationHistory, rank: int) -> Bucket:
    """Return the bucket for a rank's time after its last known step or mark, until the generation ended or until
    now."""
    account, ending = generation.accounts.get(rank), generation.ending
    if not _is_spawned(generation, rank):
        return Bucket.SCHEDULE if generation.formed_at is None else Bucket.INITIALISE
    if account is None or not history.has_runtime:
        return Bucket.NOT_MEASURED
    if ending is not None and (rank in ending.unseen_ranks or ending.kind is EndKind.CUT):
        return Bucket.NOT_MEASURED
    if account.first_step is not None or account.loop_at is not None:
        return Bucket.NOT_MEASURED if ending is None else Bucket.REDONE
    if history.reports_steps or account.entered_at is None:
        return Bucket.INITIALISE
    return Bucket.NOT_MEASURED


def _what_remains(history: History, rank: int) -> Bucket:
    """From the last thing that is known to `until`."""
    if not history.generations:
        return Bucket.SCHEDULE
    last = history.generations[-1]
    if last.ending is None:
        if rank in last.done_at or history.is_over:
            return Bucket.IDLE
        return _unfinished(history, last, rank)
    if history.is_over or last.ending.kind in (EndKind.DONE, EndKind.STOPPED):
        return Bucket.IDLE
    return Bucket.SCHEDULE
