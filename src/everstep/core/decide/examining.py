"""Examinations while the job stands still: ask, wait with a limit, judge, ask again or end. Rounds: `exam_rounds`.

The caller (`incidents`) begins one when the flow says so, and decides again when it is over.
"""

import msgspec

from everstep.core.decide import eviction, exam_rounds
from everstep.core.state.course import Answer, Examination, ExamRound, FlowStage
from everstep.core.state.frozenmap import FrozenMap, Names
from everstep.core.state.phases import Phase
from everstep.core.state.schema import Member, Role
from everstep.core.state.timers import Timer, TimerKind
from everstep.core.state.turn import Turn
from everstep.model.actions import EvictNode, ExamineNode, Refused
from everstep.model.events import NodeExamined
from everstep.model.facts import ExamKind
from everstep.model.verdict import Blame, Confidence, Evidence, Verdict

FEWEST = 3
"""Fewest machines in an examination where standbys can fill it up: with two, neither can be singled out."""

_GONE = Answer(passed=None, why="it is not part of the run any more")

ANSWER_SHARE = 0.8
"""A node's share of the limit: an answer with partial results is better than none."""


def begin(turn: Turn, stage: FlowStage) -> bool:
    """Examine all machines. Whether it is over already."""
    nodes, formation = turn.state.active_nodes, turn.state.formation
    assert formation is not None, "else there is no store, and no examination"
    if stage is FlowStage.EXAMINE:
        nodes = (*nodes, *_standbys(turn)[: max(0, FEWEST - len(nodes))])
    examination = Examination(
        stage=stage,
        begun_at=turn.at,
        nodes=nodes,
        store=(formation.store_host, formation.store_port),  # of the ranks that have ended
        shape=exam_rounds.job_shape(turn.state),
        pipeline=exam_rounds.pipeline_machines(turn.state),
    )
    turn.enter(Phase.EXAMINING, waiting=Names())
    return _go_on(turn, examination)


def on_answer(turn: Turn, event: NodeExamined) -> bool:
    """Whether the examination is over with it."""
    examination = _under_way(turn, event.exam)
    if examination is None or event.node not in examination.waiting:
        return False
    answer = Answer(passed=event.passed, why=event.why, blames=event.blames, digest=event.digest)
    return _take(turn, examination, event.node, answer)


def on_lost(turn: Turn, node: str, reason: str) -> bool:
    """A node that is examined is gone: that says nothing about what it was examined for."""
    examination = _under_way(turn)
    if examination is None or node not in examination.waiting:
        return False
    return _take(turn, examination, node, Answer(passed=None, why=f"it was lost ({reason})"))


def on_timer(turn: Turn, exam: str) -> bool:
    """The answers are late: what there is, is judged."""
    examination = _under_way(turn, exam)
    return examination is not None and _go_on(turn, msgspec.structs.replace(examination, waiting=Names()))


def pending_actions(turn: Turn, why: str) -> list[ExamineNode]:
    """List the examinations that have not been answered."""
    examination = _under_way(turn)
    return [] if examination is None else [a for a in _asking(turn, examination, why) if a.node in examination.waiting]


def named(verdict: Verdict, examination: Examination, at: float) -> Verdict:
    """The verdict, with what an examination that is over found."""
    evidence = tuple(
        Evidence(at=at, source="examination", says=f"{node}: {says}", node=node)
        for node, says in examination.failed.items()
    ) or (Evidence(at=at, source="examination", says=examination.says),)
    if not examination.failed:
        return msgspec.structs.replace(verdict, evidence=(*verdict.evidence, *evidence))
    node, says = next(iter(examination.failed.items()))
    more = f" (and {len(examination.failed) - 1} more)" if len(examination.failed) > 1 else ""
    return msgspec.structs.replace(
        verdict,
        sentence=f"{verdict.sentence}; examined, {node} failed{more}: {says}",
        blame=Blame.MACHINE,
        confidence=Confidence.HIGH,
        node=node,
        action=eviction.REPLACE[0],
        evidence=(*evidence, *verdict.evidence),
    )


def _go_on(turn: Turn, examination: Examination) -> bool:
    """The next round, or the end. Whether it is the end."""
    while True:
        coming = exam_rounds.next_round(examination, turn.spec.nproc_per_node)
        if coming is None:
            _end(turn, examination)
            return True
        kind, groups = coming
        exam = f"{turn.incident.id}/{len(examination.rounds) + 1}"
        asked = [node for group in groups for node in group]
        here = Names(node for node in asked if _is_here(turn, node))
        gone = FrozenMap((node, _GONE) for node in asked if node not in here)
        coming_round = ExamRound(exam=exam, kind=kind, groups=groups, answers=gone)
        examination = msgspec.structs.replace(examination, rounds=(*examination.rounds, coming_round), waiting=here)
        if here:
            break
    turn.set_incident(examination=examination)
    for action in _asking(turn, examination, _why(turn, examination)):
        if action.node in here:
            turn.do(action)
    limit_s = _limit_s(turn, kind)
    turn.start_timer(Timer(TimerKind.EXAM, exam), limit_s, f"{kind}: a node without an answer is not known")
    return False


def _take(turn: Turn, examination: Examination, node: str, answer: Answer) -> bool:
    *before, current = examination.rounds
    answered = msgspec.structs.replace(current, answers=current.answers.updated({node: answer}))
    waiting = examination.waiting.without(node)
    taken = msgspec.structs.replace(examination, rounds=(*before, answered), waiting=waiting)
    if not waiting:
        turn.drop_timer(Timer(TimerKind.EXAM, current.exam))
        return _go_on(turn, taken)
    turn.set_incident(examination=taken)
    return False


def _end(turn: Turn, examination: Examination) -> None:
    judged = exam_rounds.judge(examination)
    failed = {node: says for node, says in judged.failed.items() if turn.state.is_active(node)}
    says = exam_rounds.says(examination, turn.policy, turn.at - examination.begun_at)
    done = msgspec.structs.replace(
        examination, is_over=True, waiting=Names(), failed=failed, unclear=judged.unclear, says=says
    )
    turn.set_incident(examination=done)
    for refusal in judged.unclear:
        turn.do(Refused(what=refusal.what, why=refusal.why, incident=turn.incident.id))
    for node, why in judged.failed.items():
        member = turn.state.members.get(node)
        if node not in failed and member is not None and member.role is Role.STANDBY:
            _end_standby(turn, member, why)


def _end_standby(turn: Turn, member: Member, why: str) -> None:
    """Evict a standby that failed. A replacement is requested when its exit is reported."""
    why_not = eviction.why_too_many(turn, 1)
    if why_not or member.suspected:
        turn.do(Refused(what=f"evict standby {member.node}", why=f"{why}; {why_not}", incident=turn.incident.id))
        return
    eviction.count(turn, 1)
    suspected = msgspec.structs.replace(member, suspected=True)
    turn.set(members=turn.state.members.updated({member.node: suspected}))
    turn.do(EvictNode(node=member.node, why=f"standby {member.node} failed: {why}"))


def _asking(turn: Turn, examination: Examination, why: str) -> list[ExamineNode]:
    current = examination.rounds[-1]
    is_replay = current.kind is ExamKind.REPLAY
    host, port = examination.store
    return [
        ExamineNode(
            node=node,
            generation=turn.state.generation,
            exam=current.exam,
            kind=current.kind,
            group=group,
            group_index=index,
            num_ranks=turn.spec.nproc_per_node,
            store_host=host,
            store_port=port,
            limit_s=_limit_s(turn, current.kind) * ANSWER_SHARE,
            shape=examination.shape,
            num_rounds=exam_rounds.num_replays(turn.policy) if is_replay else 1,
            why=why,
        )
        for index, group in enumerate(current.groups)
        for node in group
    ]


def _why(turn: Turn, examination: Examination) -> str:
    what = turn.incident.verdict.sentence if turn.incident.verdict is not None else "a fault has no culprit"
    return f"{turn.incident.id}: {what}; {len(examination.nodes)} machines are examined before the restart"


def _limit_s(turn: Turn, kind: ExamKind) -> float:
    return turn.policy.replay_limit_s if kind is ExamKind.REPLAY else turn.policy.exam_limit_s


def _under_way(turn: Turn, exam: str = "") -> Examination | None:
    """The examination, if it waits for answers, and to this one if one is given."""
    if turn.state.phase is not Phase.EXAMINING or turn.state.incident is None:
        return None
    examination = turn.incident.examination
    if examination is None or examination.is_over or not examination.rounds:
        return None
    return examination if not exam or examination.rounds[-1].exam == exam else None


def _standbys(turn: Turn) -> tuple[str, ...]:
    return tuple(m.node for m in turn.state.members.values() if m.role is Role.STANDBY and not m.suspected)


def _is_here(turn: Turn, node: str) -> bool:
    member = turn.state.members.get(node)
    return member is not None and member.role is not Role.OUT
