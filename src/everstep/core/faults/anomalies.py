"""A job that runs, and something is wrong: with it (slow, numbers gone wrong, replicas that differ) or with its nodes.

A machine that is to blame is evicted where that helps (`eviction`). A job whose replicas differ goes back to the newest
trusted step (`trust`). Everything else is explained and left alone, because a restart would neither make a machine
faster nor a number right. What was left alone only because no standby was ready is looked at again when one joins.
"""

from everstep.analyzer.exits import FaultFacts, judge
from everstep.core.decide import eviction, recovery
from everstep.core.faults.incidents import stop_generation
from everstep.core.faults.opening import open_incident
from everstep.core.faults.tracing import trace_excused, trace_slow
from everstep.core.restore import trust
from everstep.core.state.phases import Phase
from everstep.core.state.schema import Deferred, Role
from everstep.core.state.turn import Turn
from everstep.model.actions import Concluded, IncidentClosed, Refused
from everstep.model.events import AnomalyFound
from everstep.model.spec import Mode
from everstep.model.verdict import Decision, Refusal, Verdict

_NOT_DECLARED = "nothing declares them replicas, they were only seen to hold the same, so the program may mean it"
_NO_WAY_BACK = (Refusal(what="go back to a step after which all replicas agreed", why=_NOT_DECLARED),)

DEFERRED_S = 900.0
"""How long a deferred anomaly may still be acted on. An older slow machine or alert may be over: watches and senses
report it again. A drain is reported once and lasts until it is withdrawn."""


def on_anomaly_found(turn: Turn, event: AnomalyFound) -> None:
    if event.refusal is not None:
        turn.do(Refused(what=event.refusal.what, why=event.refusal.why))
    is_quiet = turn.state.phase is Phase.RUNNING and turn.state.incident is None
    if is_quiet and event.refusal is not None:
        trace_excused(turn, event.verdict)
    elif is_quiet:
        trust.note_agreed(turn, event)
        take(turn, event.verdict, is_declared=event.is_declared)
    # Else a fault is being handled; what is wrong for longer is found again.


def take(turn: Turn, found: Verdict, *, is_declared: bool = True) -> None:
    """Judge an anomaly while the job still runs: evict the machine to blame if that is allowed, else only report it.

    `is_declared`: the user declared the differing ranks to be replicas."""
    open_incident(turn, FaultFacts(at=turn.at, anomaly=found))
    verdict = judge(turn.incident.known)
    nodes = eviction.suspects(turn, verdict)
    plan = recovery.decide(turn, verdict)
    if is_declared and (plan.evict or _goes_back(turn, plan)):
        stop_generation(turn)
        return
    why_not, refused = _left_alone(turn, verdict, nodes, plan) if is_declared else (_NOT_DECLARED, _NO_WAY_BACK)
    why = f"{verdict.sentence}; training continues: {why_not or plan.decision.why}"
    rule = plan.decision.rule if plan.kind == "leave" and is_declared else "explain-only"
    decision = Decision(chosen="leave the job as it is", rule=rule, why=why, refused=refused)
    turn.set_incident(verdict=verdict, decision=decision)
    turn.do(Concluded(incident=turn.incident.id, verdict=verdict, decision=decision, why=why))
    trace_slow(turn)
    turn.do(IncidentClosed(incident=turn.incident.id, outcome="observed", why=why))
    turn.set(incident=None)
    if nodes and eviction.why_no_standby(turn, nodes):
        _defer(turn, found, nodes)


def _goes_back(turn: Turn, plan: recovery.Plan) -> bool:
    """Replicas differ, and there is something to go back to."""
    may = turn.spec.mode is Mode.ACT and trust.is_corrupted(turn.incident)
    return may and not trust.why_not_back(turn.state) and plan.kind in ("restart", "examine")


def _left_alone(
    turn: Turn, verdict: Verdict, nodes: tuple[str, ...], plan: recovery.Plan
) -> tuple[str, tuple[Refusal, ...]]:
    """Why nothing is done, and what is therefore not done."""
    if trust.is_corrupted(turn.incident):
        why_not = trust.why_not_back(turn.state)
        if not why_not:
            why_not = plan.decision.why if turn.spec.mode is Mode.ACT else f"mode is {turn.spec.mode}"
        return why_not, (Refusal(what="go back to a step after which all replicas agreed", why=why_not),)
    if not nodes:
        return "a restart would not cure it", ()
    why_not = eviction.why_not(turn, nodes, is_asked=eviction.is_asked(verdict))
    return why_not, (Refusal(what=f"evict {', '.join(nodes)}", why=why_not or plan.decision.why),)


def take_deferred(turn: Turn) -> None:
    """A standby is there now: machines that were left in place for lack of one."""
    if not turn.state.deferred:
        return
    has_standby = any(m.role is Role.STANDBY and not m.suspected for m in turn.state.members.values())
    while turn.state.deferred and has_standby and turn.state.phase is Phase.RUNNING and turn.state.incident is None:
        deferred, *rest = turn.state.deferred
        turn.set(deferred=tuple(rest))
        is_due = turn.at - deferred.at <= DEFERRED_S or eviction.is_asked(deferred.verdict)
        if is_due and eviction.suspects(turn, deferred.verdict) == deferred.nodes:
            take(turn, deferred.verdict)


def forget_drain(turn: Turn, node: str) -> None:
    """It was withdrawn before a standby came."""
    left = (each for each in turn.state.deferred if not (eviction.is_asked(each.verdict) and node in each.nodes))
    turn.set(deferred=tuple(left))


def _defer(turn: Turn, found: Verdict, nodes: tuple[str, ...]) -> None:
    others = tuple(each for each in turn.state.deferred if each.nodes != nodes)
    turn.set(deferred=(*others, Deferred(verdict=found, nodes=nodes, at=turn.at)))
