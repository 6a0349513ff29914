"""`everstep drain`: resolve the node, and compose the request to the run and the answer to the user. Pure."""

from everstep.analyzer.numbers.alerts import is_cause
from everstep.core.run.elastic import can_shrink_by
from everstep.core.state.schema import Member, Role, State
from everstep.knowledge.drained import drained, withdrawn
from everstep.model.facts import DRAINED, Alert
from everstep.model.spec import Mode

SOURCE = "operator"
_MOST_CHARS = 500


def named(state: State, name: str) -> Member:
    """The member with this id, or the only one on this host. Raises ValueError."""
    members = [member for member in state.members.values() if member.role is not Role.OUT]
    by_id = [member for member in members if member.node == name]
    found = by_id or [member for member in members if member.host == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"{name} has several nodes of this run, name one of them: {_listed(found)}")
    raise ValueError(f"this run has no node {name!r}; it has: {_listed(members) or 'none'}")


def drain_alert(state: State, member: Member, *, why: str, by: str, is_undone: bool, at: float) -> Alert:
    """Raises ValueError where it would change nothing."""
    who = by[:_MOST_CHARS] or "an operator"
    if is_undone:
        if not is_drained(state, member.node):
            raise ValueError(f"{member.node} is not drained: nothing to undo")
        if state.incident is not None and member.node in state.incident.evicting:
            raise ValueError(f"{member.node} is being left already")
        return withdrawn(at, f"{who} lets this node stay", SOURCE)
    if is_drained(state, member.node):
        raise ValueError(f"{member.node} is drained already; `everstep drain {member.node} --undo` takes that back")
    return drained(at, f"{who} drains this node: {why[:_MOST_CHARS] or 'no reason given'}", SOURCE)


def is_drained(state: State, node: str) -> bool:
    return any(seen.node == node and seen.alert.code == DRAINED and is_cause(seen.alert) for seen in state.alerts)


def what_follows(state: State, member: Member, *, is_undone: bool) -> str:
    """In words."""
    if is_undone:
        return "it stays"
    if state.spec is not None and state.spec.mode is not Mode.ACT:
        return f"mode is {state.spec.mode}: it is on record, and nothing is done"
    if member.role is Role.STANDBY:
        return "it is a standby: it ends now"
    others = [each for each in state.members.values() if each.role is Role.STANDBY and not each.suspected]
    if not others and can_shrink_by(state, 1):
        return "no standby is ready: the job continues with one node less"
    if not others:
        return "no standby is ready: it stays until one joins"
    return f"a standby takes its place at the next step ({len(others)} ready)"


def _listed(members: list[Member]) -> str:
    members = sorted(members, key=lambda member: (len(member.node), member.node))
    return ", ".join(f"{member.node} ({member.host})" for member in members)
