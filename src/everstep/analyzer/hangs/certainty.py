"""Can this hang end by itself? Certain: nothing can release it. Doubtful: a process could answer, or something works.

Pure. Each answer has its reason, in words. In doubt it is doubtful: a healthy job that is restarted is worse than a
hang that is reported late. Asked by `combine` of each verdict on a hang.
"""

from collections.abc import Iterable, Mapping

import msgspec

from everstep.analyzer.hangs.openers import WITHIN, Opener, find_opener
from everstep.analyzer.observations.clusters import Activity, main_thread, place_of
from everstep.analyzer.observations.finding import Finding
from everstep.analyzer.observations.records import Hold, RankEvidence, Thread, ThreadWait
from everstep.analyzer.observations.words import ranks_text, seconds, verb
from everstep.model.verdict import Blame, Certainty

_CANNOT_MEET = {
    "ES-H03": "different collectives at one place of a sequence never meet",
    "ES-H05": "the ranks wait for each other in a circle",
}
_IN_COMMUNICATION = (Activity.COLLECTIVE, Activity.BACKWARD)
LONGEST_S = 1800.0
"""A timer that ends later than this ends after the time limit of every usual collective: the others cannot wait for
it."""

NEAR_LIMIT_S = 60.0
"""A rank that computes, and has no more CPU time left than this, is ended by its limit and not by its program."""


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    certainty: Certainty
    because: str
    computes: bool = False
    blame: Blame | None = None  # whose it is, where the reason says that


def judge(
    finding: Finding,
    by_rank: Mapping[int, RankEvidence],
    doing: Mapping[int, Activity],
    world: tuple[int, ...],
    limit_s: float | None = None,
) -> Judgement:
    """`doing`: of each rank's main thread; `limit_s`: of the collectives that ranks wait in."""
    if finding.code in _CANNOT_MEET and not _is_elsewhere(finding, doing):
        return _certain(_CANNOT_MEET[finding.code])
    if finding.code == "ES-H04" and all(doing.get(rank) in _IN_COMMUNICATION for rank in finding.ranks):
        return _certain("the same collective with different arguments never completes")
    stopped = _stopped(by_rank)
    if stopped:
        return _of_stopped(stopped, by_rank)
    if _all_at_the_store(by_rank, world):
        because = "every rank waits for a key of the job's own store, and none of them can set it"
        return _certain(because, Blame.USER)
    if _all_communicate(finding, by_rank, doing, world):
        return _certain("every rank waits for others, and not all in the same call", Blame.USER)
    each = {
        rank: _of_rank(by_rank[rank], doing.get(rank), limit_s)
        for rank in _suspects(finding, by_rank, doing)
        if rank in by_rank
    }
    hopeless = {rank: why for rank, (opener, why) in each.items() if opener is None and why}
    if hopeless:
        rank, why = next(iter(hopeless.items()))
        return _certain(f"rank {rank} {why}", Blame.USER)  # locks and timers of its own
    crossed = _crossed_lock(each, by_rank, doing)
    if crossed:
        return _certain(crossed, Blame.USER)
    return _doubt(finding, each, by_rank, doing)


def _certain(because: str, blame: Blame | None = None) -> Judgement:
    return Judgement(certainty=Certainty.CERTAIN, because=because, blame=blame)


def _is_elsewhere(finding: Finding, doing: Mapping[int, Activity]) -> bool:
    """Whether a rank of a circle does not wait in it after all: an operation that was begun and is not waited for
    holds no rank. Different calls at one place never meet, whichever rank waits."""
    return finding.code == "ES-H05" and any(
        doing.get(rank, Activity.COLLECTIVE) not in _IN_COMMUNICATION for rank in finding.ranks
    )


def _suspects(finding: Finding, by_rank: Mapping[int, RankEvidence], doing: Mapping[int, Activity]) -> tuple[int, ...]:
    """The accused ranks; else those that do not wait for the others."""
    return finding.ranks or tuple(rank for rank in by_rank if doing.get(rank) not in _IN_COMMUNICATION)


def _stopped(by_rank: Mapping[int, RankEvidence]) -> list[int]:
    return [rank for rank, evidence in by_rank.items() if evidence.states and evidence.states[0][1] == "T"]


def _of_stopped(stopped: list[int], by_rank: Mapping[int, RankEvidence]) -> Judgement:
    if len(stopped) == len(by_rank) > 1:
        because = "every rank is stopped (process state T), as a user at a terminal does to continue later"
        return Judgement(certainty=Certainty.DOUBTFUL, because=because)
    are = verb(stopped, "is", "are")
    return _certain(f"{ranks_text(stopped)} {are} stopped (process state T) and {verb(stopped, 'runs', 'run')} nothing")


def threads_of(evidence: RankEvidence) -> dict[int, Thread]:
    return {
        thread.tid: thread for process in evidence.processes for thread in process.threads if thread.tid is not None
    }


def is_at_store(evidence: RankEvidence) -> bool:
    """Its main thread waits at the job's own store: for another rank."""
    main = evidence.main_wait
    return main is not None and main.is_store


def _all_at_the_store(by_rank: Mapping[int, RankEvidence], world: tuple[int, ...]) -> bool:
    """And no other thread of any of them could set what all wait for."""
    if not world or set(world) - set(by_rank):
        return False
    for evidence in by_rank.values():
        main = evidence.main_wait
        if main is None or not main.is_store:
            return False
        pretend = ThreadWait(pid=main.pid, tid=main.tid, hold=Hold.LOCK)
        others = [wait for wait in evidence.waits if not wait.is_store]
        if find_opener(pretend, others, threads_of(evidence)) is not None:
            return False
    return True


def _all_communicate(
    finding: Finding, by_rank: Mapping[int, RankEvidence], doing: Mapping[int, Activity], world: tuple[int, ...]
) -> bool:
    """The records say that a rank never entered what others wait in, and its stack that it waits for others itself (in
    a send or receive, which gloo does not record): two that wait for each other. No thread of it does anything else."""
    if finding.code not in ("ES-H02", "ES-H05") or {*world, *finding.ranks} - set(by_rank):
        return False
    if any(doing.get(rank) is not Activity.COLLECTIVE for rank in world):
        return False
    for rank in finding.ranks:
        main = by_rank[rank].main_wait
        if main is None:
            return False
        pretend = ThreadWait(pid=main.pid, tid=main.tid, hold=Hold.LOCK)
        if find_opener(pretend, by_rank[rank].waits, threads_of(by_rank[rank])) is not None:
            return False
    return True


def _of_rank(evidence: RankEvidence, activity: Activity | None, limit_s: float | None) -> tuple[Opener | None, str]:
    """The opener that could end what this rank does; or None and why none can; or None and "": unknown."""
    main = evidence.main_wait
    if main is not None and main.hold in WITHIN and activity in _IN_COMMUNICATION:
        # whatever lock it waits behind, the other ranks release it
        return Opener(works=False, does="waits for the other ranks"), ""
    if main is None:
        return Opener(works=False, does="waits for something that cannot be seen"), ""
    longest_s = LONGEST_S if limit_s is None else limit_s
    if main.hold in WITHIN or main.hold is Hold.TIMED:
        opener = find_opener(main, evidence.waits, threads_of(evidence), polls=_asks_its_loader(evidence))
        if opener is not None and _sleeps_on(opener, longest_s):
            return None, f"{_words(opener)}, longer than the others may wait ({seconds(longest_s)})"
        what = "waits for a lock" if main.hold is not Hold.OWN else "waits for its own processes"
        return opener, f"{what} that no thread and no process of it can open"
    if main.held_by == (evidence.rank,):
        own = [main, *(wait for wait in evidence.waits if wait.pid in main.holders)]
        opener = find_opener(msgspec.structs.replace(main, hold=Hold.OWN), own, threads_of(evidence))
        why = f"{main.what}: that is a process of its own, and nothing in it releases the lock in time"
        return None if opener is not None and _sleeps_on(opener, longest_s) else opener, why
    if main.left_s is not None and main.left_s > longest_s:
        return None, f"sleeps for {seconds(main.left_s)} more, longer than the others may wait ({seconds(longest_s)})"
    works = main.hold is Hold.NOTHING
    return Opener(
        works=works, does=main.what or ("works" if works else "is in a call of its own"), left_s=main.left_s
    ), ""


def _sleeps_on(opener: Opener, longest_s: float) -> bool:
    """Whether the best that could end the wait is a sleep that outlasts the others."""
    return opener.sleeps and (opener.left_s or 0.0) > longest_s


def _crossed_lock(ranks: Iterable[int], by_rank: Mapping[int, RankEvidence], doing: Mapping[int, Activity]) -> str:
    """In words: a rank waits for a file lock, and the rank that holds it waits for that rank in communication."""
    for rank in ranks:
        main = by_rank[rank].main_wait
        holders = () if main is None else main.held_by
        if main is not None and holders and all(_waits_only(holder, by_rank, doing) for holder in holders):
            them = f"{ranks_text(holders)}, which {verb(holders, 'waits', 'wait')} for the other ranks"
            return f"rank {rank} {main.what}: {verb(holders, 'that is', 'those are')} {them}"
    return ""


def _waits_only(rank: int, by_rank: Mapping[int, RankEvidence], doing: Mapping[int, Activity]) -> bool:
    """Whether its main thread waits for other ranks, and no other thread of it could do anything meanwhile."""
    main = by_rank[rank].main_wait if rank in by_rank else None
    if main is None or doing.get(rank) not in _IN_COMMUNICATION:
        return False
    pretend = ThreadWait(pid=main.pid, tid=main.tid, hold=Hold.LOCK)
    return find_opener(pretend, by_rank[rank].waits, threads_of(by_rank[rank])) is None


def _asks_its_loader(evidence: RankEvidence) -> bool:
    """A loader asks its processes every few seconds whether they live: no more than that is its time limit."""
    own = evidence.own
    thread = main_thread(own) if own is not None else None
    return thread is not None and any("torch/utils/data/" in frame.file for frame in thread.frames)


def _doubt(
    finding: Finding,
    each: Mapping[int, tuple[Opener | None, str]],
    by_rank: Mapping[int, RankEvidence],
    doing: Mapping[int, Activity],
) -> Judgement:
    if finding.code == "ES-H11" and finding.evidence and all(each.source == "log" for each in finding.evidence):
        because = "all timed out alike, and logs alone do not tell what is missing"
        return Judgement(certainty=Certainty.DOUBTFUL, because=because, blame=Blame.UNKNOWN)
    if finding.code == "ES-H11":
        because = "every rank has entered, and the network may still deliver"
        return Judgement(certainty=Certainty.DOUBTFUL, because=because)
    for rank, (opener, _) in each.items():
        if opener is not None:
            is_busy = opener.works or doing.get(rank) is Activity.PYTHON
            left_s = by_rank[rank].cpu_left_s
            if is_busy and left_s is not None and left_s <= NEAR_LIMIT_S:
                return _near_limit(rank, left_s, _at(by_rank[rank]))
            because = f"rank {rank} {_words(opener)}{_at(by_rank[rank])}: {_could(opener, is_busy)}"
            return Judgement(certainty=Certainty.DOUBTFUL, because=because, computes=is_busy)
    because = "the evidence does not say what keeps the job"
    return Judgement(certainty=Certainty.DOUBTFUL, because=because)


def _near_limit(rank: int, left_s: float, at: str) -> Judgement:
    because = f"rank {rank} works{at}, and the limit of its CPU time ends it in {seconds(left_s)} of it"
    return Judgement(certainty=Certainty.DOUBTFUL, because=because, computes=True, blame=Blame.ENVIRONMENT)


def _words(opener: Opener) -> str:
    return opener.what if opener.left_s is None else f"{opener.what} for {seconds(opener.left_s)} more"


def _could(opener: Opener, is_busy: bool) -> str:
    if is_busy:
        return "it still works"
    return "it wakes up by itself" if opener.left_s is not None else "it could still be answered"


def _at(evidence: RankEvidence) -> str:
    own = evidence.own
    thread = main_thread(own) if own is not None else None
    place = place_of(thread.frames) if thread is not None else ""
    return f" at {place}" if place else ""
