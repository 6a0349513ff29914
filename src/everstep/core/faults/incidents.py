"""From the first sign of a fault to the stop of the generation, and from there to what comes next."""

from collections.abc import Iterable

import msgspec

from everstep.analyzer.exits import FaultFacts, LostNode, Overdue, judge
from everstep.analyzer.rank_exit import looks_like_consequence
from everstep.core.decide import allowance, eviction, examining, flow, program_ends
from everstep.core.decide.recovery import Plan, decide
from everstep.core.faults.opening import add_exits, open_incident
from everstep.core.restore import holdings
from everstep.core.run import completed, elastic, ending, stopping, updates
from everstep.core.run.forming import ask_for_store, form_if_possible, start_limit_s
from everstep.core.run.progress import note_best_step, note_success
from everstep.core.state.frozenmap import Names
from everstep.core.state.phases import ALIVE, Phase
from everstep.core.state.schema import Member
from everstep.core.state.timers import LASTING, Timer, TimerKind
from everstep.core.state.turn import Turn
from everstep.model.actions import Concluded, EvictNode, Refused, StopWorkers
from everstep.model.events import (
    NodeExamined,
    NodeLost,
    ProposalApproved,
    WorkerExited,
    WorkersFailedToStart,
    WorkersStopped,
)
from everstep.model.facts import Exit
from everstep.model.verdict import DRAIN_RULE

EVICT_LIMIT_S = 20.0
"""From EvictNode to the loss of the node. The engine ends it by force; longer means that the engine is in trouble."""


def on_worker_exited(turn: Turn, event: WorkerExited) -> None:
    worker = turn.state.workers.get(event.exit.rank)
    if worker is None or worker.exit is not None or worker.node != event.node:
        return
    account = event.account if event.account is not None and event.account.rank == worker.rank else worker.account
    worker = msgspec.structs.replace(worker, exit=event.exit, account=account)
    turn.set_workers(worker)
    if turn.state.phase not in ALIVE:
        add_exits(turn, event.exit)
        if not event.exit.succeeded:
            stopping.hurry(turn, f"rank {event.exit.rank} has ended before")
        return
    if event.exit.succeeded:
        _on_success(turn)
        return
    if turn.state.tally.alive and program_ends.is_spared(turn, worker):
        return
    open_incident(turn, FaultFacts(at=turn.at), event.exit)
    if looks_like_consequence(event.exit) and turn.state.tally.alive:
        _settle(turn)
    else:
        stop_generation(turn)


def on_workers_failed_to_start(turn: Turn, event: WorkersFailedToStart) -> None:
    if turn.state.phase not in ALIVE:
        return
    ranks = tuple(worker.rank for worker in turn.workers_of(event.node))
    _overdue(turn, "ES-P04", ranks, f"{event.node} could not make its worker processes: {event.why}")


def on_slot_lost(turn: Turn, event: NodeLost, member: Member) -> None:
    """A node that held a slot is gone. The caller has put it out and looks for another."""
    assert member.slot is not None
    ranks = tuple(turn.spec.ranks_of(member.slot))
    kept = {item.rank: item for item in holdings.divided(turn.state, event.kept)[0] if item.rank in ranks}
    turn.set(held=turn.state.held.without(*ranks).updated(kept))
    if turn.state.phase in ALIVE:
        open_incident(turn, FaultFacts(at=turn.at))
    if turn.state.incident is not None:
        completed.note_unheard(turn, event.node, ranks, kept.values())
    if turn.state.incident is not None and event.node not in turn.incident.evicting:
        lost = LostNode(node=event.node, at=event.at, reason=event.reason, ranks=ranks, rack=member.rack)
        facts = turn.incident.facts
        turn.set_incident(facts=msgspec.structs.replace(facts, lost=(*facts.lost, lost)))
    if turn.state.phase in ALIVE:
        stop_generation(turn)
    elif turn.state.phase is Phase.STOPPING:
        _confirm_stopped(turn, event.node)
        stopping.hurry(turn, f"node {event.node} is lost")


def on_settle_timer(turn: Turn, generation: str, _due_at: float) -> None:
    if turn.is_current(generation) and turn.state.phase is Phase.SETTLING:
        stop_generation(turn)


def on_start_timer(turn: Turn, generation: str, _due_at: float) -> None:
    if turn.is_current(generation) and turn.state.phase is Phase.FORMING:
        _check_start(turn)


def on_rendezvous_timer(turn: Turn, generation: str, _due_at: float) -> None:
    if turn.is_current(generation) and turn.state.phase in ALIVE:
        _check_rendezvous(turn)


def on_evict_timer(turn: Turn, incident: str, _due_at: float) -> None:
    current = turn.state.incident
    if current is not None and current.id == incident and turn.state.phase is Phase.STOPPING:
        _on_evict_overdue(turn)


def on_exam_timer(turn: Turn, exam: str, _due_at: float) -> None:
    if examining.on_timer(turn, exam):
        _after_examination(turn)


def on_backoff_timer(turn: Turn, _generation: str, _due_at: float) -> None:
    if turn.state.is_backing_off:
        turn.set(is_backing_off=False)
        form_if_possible(turn)


def on_approval_timer(turn: Turn, incident: str, _due_at: float) -> None:
    if turn.state.phase is Phase.PROPOSING and incident == turn.incident.id:
        ending.finish_unallowed(turn, f"the proposal was not approved within {turn.policy.approval_timeout_s:g} s")


def on_proposal_approved(turn: Turn, event: ProposalApproved) -> None:
    if turn.state.phase is Phase.PROPOSING and turn.incident.id == event.incident:
        if turn.state.proposed_version:
            updates.roll_back(turn, turn.state.proposed_version, f"{event.incident} was approved")
        restart(turn)
        return
    what = f"approve {event.incident}"
    turn.do(Refused(what=what, why="no proposal of this incident is waiting for approval", incident=event.incident))


def on_workers_stopped(turn: Turn, event: WorkersStopped) -> None:
    if turn.state.phase is not Phase.STOPPING:
        return
    mine = _note_ends(turn, event)
    note_best_step(turn)
    # It may also hold what was kept of a lost node; the newer snapshots of those ranks are where they run now.
    held, others = holdings.divided(turn.state, event.held)
    turn.set(
        held=turn.state.held.without(*mine).updated({item.rank: item for item in held if item.rank in mine}),
        copies=turn.state.copies.updated({event.node: (*event.backups, *others)}),
    )
    _confirm_stopped(turn, event.node)


def stop_generation(turn: Turn) -> None:
    """Conclude from what is known so far, and end the generation's workers everywhere."""
    plan = _conclude_provisionally(turn)
    nodes = turn.state.active_nodes
    turn.enter(Phase.STOPPING, waiting=Names(nodes))
    evicting = tuple(node for node in plan.evict if turn.state.is_active(node))
    if _is_drain(turn):
        evicting = ()  # nothing is wrong with it: its ranks may save like all others, and then it goes
    turn.do(*_stops(turn, [node for node in nodes if node not in evicting]))
    if evicting:
        _evict(turn, evicting, plan.decision.why, evicting)
    if not nodes:
        _after_stop(turn)


def _stops(turn: Turn, nodes: Iterable[str]) -> list[StopWorkers]:
    return stopping.stops(turn, nodes, f"{turn.incident.id}: all ranks of a generation start and end together")


def _evict(turn: Turn, evicting: tuple[str, ...], why: str, new: tuple[str, ...]) -> None:
    """Evict the nodes. The engine's report of their loss confirms that their workers have ended."""
    if not _is_drain(turn):
        eviction.count(turn, len(new))
    turn.set_incident(evicting=evicting)
    for node in new:
        turn.do(EvictNode(node=node, is_drill=turn.incident.drill is not None, why=why))
    turn.start_timer(
        Timer(TimerKind.EVICT, turn.incident.id), EVICT_LIMIT_S, "the engine has to end the suspected node by then"
    )


def _on_evict_overdue(turn: Turn) -> None:
    """The engine did not end the nodes: their workers are ended in the usual way, and run on where they were."""
    left = tuple(node for node in turn.incident.evicting if node in turn.state.waiting)
    if not left:
        return
    gone = tuple(node for node in turn.incident.evicting if node not in left)
    turn.set_incident(evicting=gone, not_evicted=left)
    if not _is_drain(turn):
        turn.set(evictions=turn.state.evictions[: -len(left)])
    for node, stop in zip(left, _stops(turn, left), strict=True):
        why = "the engine has not ended it in time"
        turn.do(Refused(what=f"evict {node}", why=why, incident=turn.incident.id), stop)


def restart(turn: Turn) -> None:
    """Because of a fault: counted."""
    _gather(turn, 0.0 if _is_drain(turn) else allowance.spend(turn))


def _is_drain(turn: Turn) -> bool:
    decision = turn.state.incident.decision if turn.state.incident is not None else None
    return decision is not None and decision.rule == DRAIN_RULE


def _gather(turn: Turn, after_s: float = 0.0) -> None:
    """Into gathering; forms at once when nothing is missing and it need not wait."""
    turn.drop_timers(but=LASTING)
    turn.enter(Phase.GATHERING, waiting=Names(), pending_drills={}, updating="")
    if turn.spec.is_elastic:
        elastic.before_gathering(turn)
    turn.set(growing=0)
    ask_for_store(turn, turn.state.generation + 1)
    if after_s > 0:
        allowance.begin_wait(turn, after_s)
    form_if_possible(turn)


def _confirm_stopped(turn: Turn, node: str) -> None:
    waiting = turn.state.waiting.without(node)
    turn.set(waiting=waiting)
    if not waiting:
        _after_stop(turn)


def _after_stop(turn: Turn) -> None:
    if (turn.state.updating or turn.state.growing) and turn.state.ending is None:
        _gather(turn)
        return
    if turn.state.incident is not None:
        completed.note_at_end(turn)
    if turn.state.ending is not None:
        ending.finish(turn, turn.state.ending)
        return
    plan = _conclude_finally(turn)
    if plan.stage is not None:
        flow.note(turn, plan.stage)
    late = tuple(node for node in plan.evict if turn.state.is_active(node))
    if late:  # what blames the machine came after the ranks had ended
        turn.set(waiting=Names(late))
        _evict(turn, (*turn.incident.evicting, *late), plan.decision.why, late)
        return
    if plan.kind == "examine" and plan.stage is not None:
        if examining.begin(turn, plan.stage):
            _after_examination(turn)
        return
    verdict = turn.incident.verdict
    assert verdict is not None, "concluded above"
    program_ends.remember(turn, verdict)
    turn.forget_unjudged(verdict.node, verdict.code)
    if plan.kind in ("restart", "leave"):
        if plan.back_to:
            updates.roll_back(turn, plan.back_to, plan.decision.why)
        restart(turn)
    elif plan.kind == "propose":
        turn.enter(Phase.PROPOSING, proposed_version=plan.back_to)
        turn.do(Refused(what=plan.decision.chosen, why=plan.decision.why, incident=turn.incident.id))
        timer = Timer(TimerKind.APPROVAL, turn.incident.id)
        turn.start_timer(timer, turn.policy.approval_timeout_s, plan.decision.why)
    elif plan.kind == "unallowed":
        ending.finish_unallowed(turn, plan.decision.why)
    else:
        ending.finish(turn, ending.gave_up(plan.decision.why))


def on_node_examined(turn: Turn, event: NodeExamined) -> None:
    if examining.on_answer(turn, event):
        _after_examination(turn)


def on_examined_lost(turn: Turn, node: str, reason: str) -> None:
    if examining.on_lost(turn, node, reason):
        _after_examination(turn)


def _after_examination(turn: Turn) -> None:
    """Continue as if the ranks had just ended, with more known."""
    turn.enter(Phase.STOPPING, waiting=Names())
    _after_stop(turn)


def _conclude_provisionally(turn: Turn) -> Plan:
    """Workers still run: the verdict so far, which says what to evict at once. Later exits may change it."""
    return _conclude(turn)


def _conclude_finally(turn: Turn) -> Plan:
    """All workers have ended: the verdict that the restart, the examination or the end of the run follows from."""
    return _conclude(turn)


def _conclude(turn: Turn) -> Plan:
    incident = turn.incident
    verdict = judge(incident.known)
    if incident.examination is not None and incident.examination.is_over:
        verdict = examining.named(verdict, incident.examination, turn.at)
    plan = decide(turn, verdict)
    turn.set_incident(verdict=verdict, decision=plan.decision)
    turn.do(Concluded(incident=incident.id, verdict=verdict, decision=plan.decision, why=plan.decision.why))
    return plan


def _on_success(turn: Turn) -> None:
    if not turn.state.tally.unsuccessful:
        note_success(turn)
        ending.succeed(turn)
    elif not turn.state.tally.alive:
        if turn.state.phase is not Phase.SETTLING:
            open_incident(turn, FaultFacts(at=turn.at))  # for a rank that had ended after its work
        stop_generation(turn)


def _settle(turn: Turn) -> None:
    if turn.state.phase is Phase.SETTLING:
        return
    turn.enter(Phase.SETTLING)
    why = "the first end looks like a consequence; the rank that caused it may still be ending"
    turn.start_timer(Timer.of_generation(TimerKind.SETTLE, turn.state.generation), turn.policy.settle_s, why)


def _check_start(turn: Turn) -> None:
    late = tuple(w.rank for w in turn.state.workers.values() if w.account is None or w.account.entered_at is None)
    if late:
        limit_s = start_limit_s(turn.state, turn.policy)
        fetched = " + fetch_timeout_s" if limit_s > turn.policy.start_timeout_s else ""
        limit = f"{limit_s:g} s (policy start_timeout_s{fetched})"
        _overdue(turn, "ES-P04", late, f"ranks {list(late)} had not reached the user's program after {limit}")


def _check_rendezvous(turn: Turn) -> None:
    accounts = {w.rank: w.account for w in turn.state.workers.values()}
    waiting = [r for r, a in accounts.items() if a and a.rendezvous_begun_at and not a.rendezvous_done_at]
    if not waiting:
        return
    missing = tuple(r for r, a in accounts.items() if a is None or a.rendezvous_begun_at is None)
    limit = f"{turn.policy.rendezvous_timeout_s:g} s (policy rendezvous_timeout_s)"
    who = f"ranks {list(missing)} never called it" if missing else "every rank called it and none came out"
    _overdue(turn, "ES-P05", missing, f"ranks {waiting} wait in init_process_group since {limit}; {who}")


def _overdue(turn: Turn, code: str, ranks: tuple[int, ...], says: str) -> None:
    open_incident(turn, FaultFacts(at=turn.at))
    facts = turn.incident.facts
    overdue = Overdue(code=code, at=turn.at, ranks=ranks, says=says)
    turn.set_incident(facts=msgspec.structs.replace(facts, overdue=(*facts.overdue, overdue)))
    stop_generation(turn)


def _note_ends(turn: Turn, event: WorkersStopped) -> list[int]:
    """How far this node's ranks were, and how they ended; of one that had ended before, that is known. These ranks."""
    accounts = {account.rank: account for account in event.accounts}
    own, exits = turn.workers_of(event.node), _first_of_each(event.exits)
    new = [exits[worker.rank] for worker in own if worker.exit is None and worker.rank in exits]
    turn.set_workers(
        *(
            msgspec.structs.replace(
                worker,
                account=accounts.get(worker.rank, worker.account),
                exit=worker.exit or exits.get(worker.rank),
            )
            for worker in own
        )
    )
    add_exits(turn, *new)
    return [worker.rank for worker in own]


def _first_of_each(exits: Iterable[Exit]) -> dict[int, Exit]:
    found: dict[int, Exit] = {}
    for exit_ in exits:
        found.setdefault(exit_.rank, exit_)
    return found
