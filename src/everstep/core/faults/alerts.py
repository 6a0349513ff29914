"""What nodes notice about themselves: remembered, so that it can explain a fault, and judged when the job runs.

The same thing is judged once, however often it is told, and by however many nodes of one machine. A standby that needs
repair is ended under the same conditions as an active node: mode act, and within the circuit breaker.
"""

import msgspec

from everstep.analyzer.numbers.alerts import SeenAlert, is_cause, verdict_on
from everstep.core.decide import eviction
from everstep.core.faults import late
from everstep.core.faults.anomalies import take, take_deferred
from everstep.core.state.phases import Phase
from everstep.core.state.schema import Member, Role
from everstep.core.state.turn import Turn
from everstep.model.actions import EvictNode, Refused
from everstep.model.events import NodeAlerted
from everstep.model.spec import Mode

CAUSES_KEPT = 64
WARNINGS_KEPT = 16
"""Apart from causes, so that a flood of warnings does not push a cause out of memory."""

ALERT_MEMORY_S = 3600.0
"""So that the second fault of the same device is known as such."""


def on_node_alerted(turn: Turn, event: NodeAlerted) -> None:
    member = turn.state.members.get(event.node)
    if member is None or member.role is Role.OUT:
        return
    new = [SeenAlert(node=event.node, alert=alert) for alert in event.alerts]
    fresh = _fresh(turn, new)
    _remember(turn, new)
    if turn.state.incident is not None and not turn.incident.restarted:
        turn.set_incident(facts=msgspec.structs.replace(turn.incident.facts, alerts=turn.state.alerts))
    if member.role is Role.STANDBY:
        _judge_standby(turn, member, fresh)
    else:
        turn.set(unjudged=(*turn.state.unjudged, *fresh))
    late.correct(turn, new)


def judge_waiting(turn: Turn) -> None:
    """Alerts that came while a fault was being handled are looked at when the job runs again, one at a time; after them
    machines that were left in place for lack of a standby."""
    while turn.state.unjudged and turn.state.phase is Phase.RUNNING and turn.state.incident is None:
        seen, *rest = turn.state.unjudged
        turn.set(unjudged=tuple(rest))
        if turn.state.is_active(seen.node):
            ranks = tuple(worker.rank for worker in turn.workers_of(seen.node))
            take(turn, verdict_on(seen, turn.state.alerts, seen.alert.at, ranks, ""))
    take_deferred(turn)


def _fresh(turn: Turn, new: list[SeenAlert]) -> list[SeenAlert]:
    """Causes that nobody has told."""
    told = {_key(turn, seen) for seen in turn.state.alerts if is_cause(seen.alert) and _is_remembered(turn, seen)}
    fresh = []
    for seen in new:
        key = _key(turn, seen)
        if is_cause(seen.alert) and key not in told:
            told.add(key)
            fresh.append(seen)
    return fresh


def _remember(turn: Turn, new: list[SeenAlert]) -> None:
    known = [seen for seen in (*turn.state.alerts, *new) if _is_remembered(turn, seen)]
    warnings = [seen for seen in known if not is_cause(seen.alert)][-WARNINGS_KEPT:]
    causes = [seen for seen in known if is_cause(seen.alert)][-CAUSES_KEPT:]
    turn.set(alerts=(*warnings, *causes))


def _is_remembered(turn: Turn, seen: SeenAlert) -> bool:
    return seen.alert.at > turn.at - ALERT_MEMORY_S


def _key(turn: Turn, seen: SeenAlert) -> tuple[str, str, str]:
    """Nodes of one machine read the same kernel log: what one of them has told is told."""
    member = turn.state.members.get(seen.node)
    return member.host if member is not None else seen.node, seen.alert.code, seen.alert.device


def _judge_standby(turn: Turn, member: Member, fresh: list[SeenAlert]) -> None:
    """It is no standby any more; another one is asked for when its loss is told."""
    broken = [seen for seen in fresh if seen.alert.action in (*eviction.REPLACE, *eviction.DRAIN)]
    if not broken or member.suspected:
        return
    why_not = f"mode is {turn.spec.mode}" if turn.spec.mode is not Mode.ACT else eviction.why_too_many(turn, 1)
    why = f"standby {member.node}: {broken[0].alert.sentence}"
    if why_not:
        turn.do(Refused(what=f"evict standby {member.node}", why=f"{why}; {why_not}"))
        return
    eviction.count(turn, 1)
    turn.set_members(msgspec.structs.replace(member, suspected=True))
    turn.do(EvictNode(node=member.node, why=why))
