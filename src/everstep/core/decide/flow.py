"""The flow of ByteRobust (SOSP 2025, 4.1) as a table: what is tried against a fault that has no culprit, and what comes
next.

What is certain never gets here: a machine that an alert names is evicted, a program that cannot run is not started
again. A fault without a culprit goes down its column of TABLE, one stage further each time that it comes again without
enough progress in between; a stage that is not possible is skipped, with the reason. Unlike ByteRobust, the first stage
is a restart in place: here it costs a quarter of a second and no step, less than any check (docs/adr/0012).
"""

import enum
import re
import signal

import msgspec

from everstep.analyzer.rank_exit import shell_signal
from everstep.core.decide import eviction, exam_rounds
from everstep.core.restore import racks, trust
from everstep.core.run import updates
from everstep.core.state.course import Course, FlowStage
from everstep.core.state.turn import Turn
from everstep.model.verdict import Blame, Certainty, Refusal, Verdict


class Unexplained(enum.StrEnum):
    """Faults that have no culprit."""

    CRASH = "crash"
    HANG = "hang"
    CORRUPTION = "corruption"
    NAN = "nan"


_S = FlowStage
TABLE: dict[Unexplained, tuple[FlowStage, ...]] = {
    Unexplained.CRASH: (_S.REATTEMPT, _S.EXAMINE, _S.ROLL_BACK, _S.REPLAY, _S.GIVE_UP),
    Unexplained.HANG: (_S.REATTEMPT, _S.EVICT_GROUP, _S.EXAMINE, _S.ROLL_BACK, _S.REPLAY, _S.GIVE_UP),
    Unexplained.CORRUPTION: (_S.REATTEMPT, _S.EXAMINE, _S.REPLAY),  # each goes back to a trusted step besides
    Unexplained.NAN: (_S.REATTEMPT, _S.EXAMINE, _S.ROLL_BACK, _S.REPLAY, _S.GIVE_UP),  # so does this one
}

WORDS = {
    _S.REATTEMPT: "restart in place",
    _S.EVICT_GROUP: "evict the machines of the group",
    _S.EXAMINE: "examine all machines",
    _S.ROLL_BACK: "go back to the version of the code that trained",
    _S.REPLAY: "replay the job's layout on groups of machines",
    _S.GIVE_UP: "give up",
}

EXAMINATIONS = (_S.EXAMINE, _S.REPLAY)
REMEDIES = (*EXAMINATIONS, _S.ROLL_BACK)
"""Stages that can find or remove the machine, or the code, that computes wrongly."""

_ORDER = tuple(FlowStage)
_NATIVE = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}
"""Signals that a process's own native code brings upon it. Others come from outside, and no machine is to blame."""

_OWN_CODES = re.compile(r"ES-[PUHSN]\d")
_CRASHES = ("ES-P01", "ES-P07")
_CODE_OR_GPU = ("ES-CU04", "ES-CU07", "ES-G13", "ES-G31")
"""Illegal and misaligned accesses. Blamed on the program, but of 62 that ByteRobust looked into (Table 2) 21 were the
machine's: the program's name on them does not clear the machines."""
_OUTSIDE = ("ES-NT03", "ES-NT04", "ES-NT07", "ES-CT03")
"""Names, web services and registries outside of the cluster: no machine of the job is behind them."""
_OF_MACHINES = ("ES-H10", "ES-H11")
"""Hangs that no program has by itself: a rank that cannot answer, a collective that all entered."""

_HARDWARE = (Blame.UNKNOWN, Blame.MACHINE, Blame.NETWORK)
"""Blames that hardware may be behind."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Where an incident stands in the flow."""

    kind: Unexplained
    stage: FlowStage | None  # None: nothing that is left is possible
    count: int  # faults in a row without enough progress in between, with this one
    skipped: tuple[Refusal, ...]
    then: str  # what comes next if it comes again


def choose(turn: Turn, verdict: Verdict) -> Choice | None:
    """The stage for this fault; None when it has a culprit or needs none, and other rules decide."""
    kind = kind_of(turn, verdict)
    if kind is None:
        return None
    course = remembered(turn)
    is_mine = course is not None and course.incident == turn.incident.id
    count = 1 if course is None else course.times + (0 if is_mine else 1)
    skipped: list[Refusal] = []
    if eviction_is_under_way(turn):
        return Choice(
            kind=kind, stage=_S.EVICT_GROUP, count=count, skipped=(), then=_then(turn, verdict, kind, _S.EVICT_GROUP, 1)
        )
    for stage in _from(turn, _column(turn, verdict, kind), course):
        why_not = "" if is_mine and course is not None and stage is course.stage else _why_not(turn, verdict, stage)
        if not why_not:
            return Choice(
                kind=kind,
                stage=stage,
                count=count,
                skipped=tuple(skipped),
                then=_then(turn, verdict, kind, stage, count),
            )
        skipped.append(Refusal(what=WORDS[stage], why=why_not))
    return Choice(kind=kind, stage=None, count=count, skipped=tuple(skipped), then="")


def kind_of(turn: Turn, verdict: Verdict) -> Unexplained | None:
    """The column of the table; None for faults with a culprit, and for those that no machine can cause."""
    if verdict.code == "ES-N05" or (verdict.code == "ES-N04" and verdict.blame is Blame.UNKNOWN):
        return Unexplained.CORRUPTION
    if _is_evictable(verdict):
        return None
    if verdict.code in trust.NOT_NUMBERS:
        return Unexplained.NAN  # data, learning rate, or a device that computes wrongly: the number does not say
    if turn.incident.facts.anomaly is not None:
        return None
    if verdict.code in _CODE_OR_GPU:
        return Unexplained.CRASH
    if verdict.code == "ES-P02" and _signals(turn, verdict) & _NATIVE:
        return Unexplained.CRASH  # most often the program's, and sometimes a machine's
    if verdict.code == "ES-P01" and not verdict.place:
        return Unexplained.CRASH
    if verdict.blame not in _HARDWARE or verdict.code in _OUTSIDE:
        return None  # a signal or an interrupt comes from a person, never from a machine
    if verdict.code.startswith("ES-H"):
        # A program that waits for long looks like a hung machine; a doubtful verdict never removes a machine.
        is_doubtful = verdict.certainty is Certainty.DOUBTFUL and verdict.code not in _OF_MACHINES
        return None if is_doubtful else Unexplained.HANG
    is_said = _OWN_CODES.match(verdict.code) is None  # a line that a rank logged, such as an internal error of NCCL
    if is_said or verdict.code in _CRASHES:
        return Unexplained.CRASH
    return None


def remembered(turn: Turn) -> Course | None:
    """How far the flow has gone; None once the job has trained long enough since."""
    course = turn.state.course
    if course is None or course.incident == turn.incident.id:
        return course
    is_old = turn.at - course.at > turn.policy.course_s
    is_progress_unknown = not (turn.state.has_stepped and turn.state.has_own_steps)
    return None if is_old and (is_progress_unknown or _progress(turn, course)) else course


def note(turn: Turn, stage: FlowStage) -> None:
    """This stage is what happens now. Once per incident counts."""
    course = remembered(turn)
    if course is not None and course.incident == turn.incident.id and course.stage is stage:
        return
    times = 1 if course is None else course.times + (course.incident != turn.incident.id)
    new = Course(stage=stage, incident=turn.incident.id, at=turn.at, best_step=turn.state.best_step, times=times)
    turn.set(course=new)
    if stage is FlowStage.EVICT_GROUP:
        turn.set(group_evicted_at=turn.at)


def is_examined_next(turn: Turn, verdict: Verdict) -> bool:
    """Whether machines are to be examined for this fault, and have not been."""
    examination = turn.incident.examination
    if examination is not None and examination.is_over:
        return False
    choice = choose(turn, verdict)
    return choice is not None and choice.stage in EXAMINATIONS


def has_more(turn: Turn, verdict: Verdict) -> bool:
    """Whether the flow, and not the rule for the program's own failures, says what comes next."""
    choice = choose(turn, verdict)
    return choice is not None and choice.stage is not None


def eviction_is_under_way(turn: Turn) -> bool:
    """The machines of a group are being ended for this incident, or are gone."""
    incident = turn.incident
    rule = incident.decision.rule if incident.decision is not None else ""
    return bool(incident.evicting) and rule == str(_S.EVICT_GROUP)


def group_nodes(turn: Turn, verdict: Verdict) -> tuple[str, ...]:
    """Machines to be isolated for a hang: of the one rank that is named for certain, else of what all suspects share:
    their parallel group, or their rack where that is not larger."""
    named = _nodes_of(turn, verdict.ranks)
    if len(named) == 1 and verdict.confidence == "high":
        return named
    group = _nodes_of(turn, verdict.group_ranks)
    return _of_rack(turn, named, group) or group or named


def shared_rack(turn: Turn, verdict: Verdict, nodes: tuple[str, ...]) -> str:
    """The rack that is isolated with these machines; empty: it is the group."""
    is_group = set(nodes) == set(_nodes_of(turn, verdict.group_ranks))
    return "" if is_group else racks.shared(turn.state, nodes)


def _of_rack(turn: Turn, named: tuple[str, ...], group: tuple[str, ...]) -> tuple[str, ...]:
    rack = racks.shared(turn.state, named)
    nodes = racks.active_nodes(turn.state, rack) if rack else ()
    is_all = set(nodes) >= set(turn.state.active_nodes)
    return nodes if not is_all and (not group or len(nodes) <= len(group)) else ()


def _column(turn: Turn, verdict: Verdict, kind: Unexplained) -> tuple[FlowStage, ...]:
    """Without the restart in place where the steps have been done again, while its machine was still blamed for it."""
    column = TABLE[kind]
    is_done_again = verdict.node is not None and trust.has_differed(turn, verdict.node)
    return column[1:] if verdict.code == "ES-N04" and is_done_again else column


def _from(turn: Turn, column: tuple[FlowStage, ...], course: Course | None) -> tuple[FlowStage, ...]:
    """Return the stages of the column that are left. The restart in place may come more than once."""
    if course is None:
        return column
    if course.incident == turn.incident.id:
        return tuple(stage for stage in column if _ORDER.index(stage) >= _ORDER.index(course.stage))
    is_blind = course.stage is FlowStage.REATTEMPT and course.times < turn.policy.blind_restarts
    least = _ORDER.index(course.stage) + (0 if is_blind else 1)
    return tuple(stage for stage in column if _ORDER.index(stage) >= least)


def _then(turn: Turn, verdict: Verdict, kind: Unexplained, stage: FlowStage, count: int) -> str:
    """Describe the stage that would come next, as things are now; empty if there is none."""
    if stage is FlowStage.REATTEMPT and count < turn.policy.blind_restarts:
        return WORDS[stage]
    for later in TABLE[kind]:
        is_end = later is FlowStage.GIVE_UP and not turn.policy.exact_restarts
        is_possible = is_end or not _why_not(turn, verdict, later)
        if _ORDER.index(later) > _ORDER.index(stage) and is_possible:
            return WORDS[later]
    return ""


def _why_not(turn: Turn, verdict: Verdict, stage: FlowStage) -> str:
    """Why this stage is not possible; empty when it is."""
    match stage:
        case FlowStage.REATTEMPT:
            return "" if turn.policy.blind_restarts else "policy blind_restarts = 0"
        case FlowStage.EVICT_GROUP:
            return _why_not_group(turn, verdict)
        case FlowStage.EXAMINE:
            return _why_no_examination(turn) if turn.policy.examine else "policy examine = false"
        case FlowStage.ROLL_BACK:
            return updates.why_not_roll_back(turn)
        case FlowStage.REPLAY:
            return _why_no_replay(turn)
        case FlowStage.GIVE_UP:
            return _why_not_give_up(turn)


def _why_not_group(turn: Turn, verdict: Verdict) -> str:
    nodes = group_nodes(turn, verdict)
    if not nodes:
        return "the evidence names no rank and no group"
    if set(nodes) >= set(turn.state.active_nodes):
        return "the group is on all machines of the job"
    if set(nodes) & set(turn.incident.not_evicted):
        return "the engine did not end them in time"
    since = turn.state.group_evicted_at
    if since is not None and turn.at - since < turn.policy.group_cooldown_s:
        limit = f"policy group_cooldown_s = {turn.policy.group_cooldown_s:g}"
        return f"a group was evicted {turn.at - since:.0f} s ago ({limit})"
    return eviction.why_not(turn, nodes)


def _why_no_examination(turn: Turn) -> str:
    if turn.policy.exact_restarts and not turn.spec.num_standby:
        return "--max-restarts says what happens, and there is no standby that could take a machine's place"
    if turn.incident.examination is None and turn.state.formation is None:
        return "the store in which machines would meet is not open"
    return ""


def _why_no_replay(turn: Turn) -> str:
    if not turn.policy.replay:
        return "policy replay = false"
    groups = exam_rounds.replay_layout(turn.state, turn.state.active_nodes)
    return groups if isinstance(groups, str) else _why_no_examination(turn)


def _why_not_give_up(turn: Turn) -> str:
    """A job that moves on is not ended: the restart budget bounds it."""
    course = remembered(turn)
    if turn.policy.exact_restarts:
        return f"--max-restarts {turn.policy.max_restarts} was given: so many restarts there are"
    if not turn.state.has_stepped:
        return "the program reports no steps, so whether it makes progress is not known"
    if not turn.state.has_own_steps:
        return "its steps are counted anew after each restart, so whether it makes progress is not known"
    if course is not None and _progress(turn, course):
        return f"{_progress(turn, course)} steps were completed since the last stage: it moves on"
    return ""


def _progress(turn: Turn, course: Course) -> int:
    """Steps completed since this stage was reached."""
    now = turn.state.best_step
    return 0 if now is None else now - (-1 if course.best_step is None else course.best_step)


def _is_evictable(verdict: Verdict) -> bool:
    return verdict.node is not None and verdict.action in (*eviction.REPLACE, *eviction.DRAIN)


def _signals(turn: Turn, verdict: Verdict) -> set[int]:
    """The signals that ended the accused ranks; for a shell's child, the one that the shell reports."""
    mine = [e for e in turn.incident.exits.values() if e.rank in verdict.ranks and not e.stopped_by_us]
    return {signum for e in mine if (signum := e.signal if e.signal is not None else shell_signal(e)) is not None}


def _nodes_of(turn: Turn, ranks: tuple[int, ...]) -> tuple[str, ...]:
    workers = [turn.state.workers[rank] for rank in ranks if rank in turn.state.workers]
    return tuple(dict.fromkeys(worker.node for worker in workers))
