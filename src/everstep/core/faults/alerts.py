"""Alerts that nodes raise about themselves: kept to explain a later fault, and judged while the job runs.

An alert is judged once, however often it is reported and by however many nodes of one machine. A standby that needs
repair is evicted under the same conditions as an active node: mode act, and within the circuit breaker.
"""

from collections.abc import Iterable

import msgspec

from everstep.analyzer.numbers.alerts import SeenAlert, is_cause, verdict_on
from everstep.core.decide import eviction
from everstep.core.faults import late
from everstep.core.faults.anomalies import forget_drain, take, take_deferred
from everstep.core.state.phases import Phase
from everstep.core.state.schema import Member, Role
from everstep.core.state.turn import Turn
from everstep.model.actions import EvictNode, Refused
from everstep.model.events import NodeAlerted
from everstep.model.facts import DRAINED
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
    if any(_is_withdrawal(seen) for seen in new):
        _withdraw(turn, event.node)
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
    """The causes that have not been reported before."""
    told = {_key(turn, seen) for seen in turn.state.alerts if is_cause(seen.alert) and _is_remembered(turn, seen)}
    fresh = []
    for seen in new:
        key = _key(turn, seen)
        if is_cause(seen.alert) and key not in told:
            told.add(key)
            fresh.append(seen)
    return fresh


def _is_withdrawal(seen: SeenAlert) -> bool:
    return seen.alert.code == DRAINED and not is_cause(seen.alert)


def _withdraw(turn: Turn, node: str) -> None:
    """The node is not to be left any more, and a later drain of it is a new one."""

    def others(seen: Iterable[SeenAlert]) -> tuple[SeenAlert, ...]:
        return tuple(each for each in seen if (each.node, each.alert.code) != (node, DRAINED))

    turn.set(alerts=others(turn.state.alerts), unjudged=others(turn.state.unjudged))
    forget_drain(turn, node)


def _remember(turn: Turn, new: list[SeenAlert]) -> None:
    known = [seen for seen in (*turn.state.alerts, *new) if _is_remembered(turn, seen)]
    warnings = [seen for seen in known if not is_cause(seen.alert)][-WARNINGS_KEPT:]
    causes = [seen for seen in known if is_cause(seen.alert)][-CAUSES_KEPT:]
    turn.set(alerts=(*warnings, *causes))


def _is_remembered(turn: Turn, seen: SeenAlert) -> bool:
    if seen.alert.code == DRAINED:
        member = turn.state.members.get(seen.node)
        return member is not None and member.role is not Role.OUT
    return seen.alert.at > turn.at - ALERT_MEMORY_S


def _key(turn: Turn, seen: SeenAlert) -> tuple[str, str, str]:
    """The key that identifies an alert. Nodes of one machine read the same kernel log, so one report covers them all; a
    drain concerns a single node."""
    member = turn.state.members.get(seen.node) if seen.alert.code != DRAINED else None
    return member.host if member is not None else seen.node, seen.alert.code, seen.alert.device


def _judge_standby(turn: Turn, member: Member, fresh: list[SeenAlert]) -> None:
    """Evict a standby that raised an alert. A replacement is requested when its exit is reported."""
    broken = [seen for seen in fresh if seen.alert.action in (*eviction.REPLACE, *eviction.DRAIN)]
    if not broken or member.suspected:
        return
    is_asked = broken[0].alert.code == DRAINED
    why_not = "" if is_asked else eviction.why_too_many(turn, 1)
    if turn.spec.mode is not Mode.ACT:
        why_not = f"mode is {turn.spec.mode}"
    why = f"standby {member.node}: {broken[0].alert.sentence}"
    if why_not:
        turn.do(Refused(what=f"evict standby {member.node}", why=f"{why}; {why_not}"))
        return
    if not is_asked:
        eviction.count(turn, 1)
    turn.set_members(msgspec.structs.replace(member, suspected=True))
    turn.do(EvictNode(node=member.node, why=why))
