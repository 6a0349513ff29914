"""Nodes that share a rack or a switch, and so fail as one although no program knows of it. Pure.

A node reports its rack when it joins. Empty means unknown, and never counts as a separate rack where safety depends on
it. Used to place copies, to assign slots and to evict machines.
"""

import re
from collections import Counter
from collections.abc import Iterable

from everstep.core.state.schema import Member, Role, State

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,63}")


def why_no_rack(name: str) -> str:
    """Why this cannot be a rack's name; empty when it can."""
    allowed = "letters, digits and . _ : / -, at most 64 of them, the first a letter or a digit"
    return "" if _NAME.fullmatch(name) else f"{name[:80]!r} is not the name of a rack: {allowed}"


def of_nodes(state: State, nodes: Iterable[str]) -> dict[str, str]:
    """Node -> rack, of those of which it is known."""
    return {node: state.members[node].rack for node in nodes if node in state.members and state.members[node].rack}


def members_of(state: State, rack: str) -> list[Member]:
    """Nodes of this rack that are part of the run, standbys first: they are not missed."""
    mine = [m for m in state.members.values() if m.rack == rack and m.role is not Role.OUT]
    return sorted(mine, key=lambda member: member.role is not Role.STANDBY)


def known(state: State) -> list[str]:
    """Names, sorted."""
    return sorted({m.rack for m in state.members.values() if m.rack and m.role is not Role.OUT})


def shared(state: State, nodes: Iterable[str]) -> str:
    """The rack of two nodes or more that are all in it; empty: they share none, or it is not known."""
    chosen = tuple(dict.fromkeys(nodes))
    found = {state.members[node].rack if node in state.members else "" for node in chosen}
    return next(iter(found)) if len(chosen) > 1 and len(found) == 1 else ""


def active_nodes(state: State, rack: str) -> tuple[str, ...]:
    """Those of this rack that hold a slot."""
    return tuple(node for node in state.active_nodes if state.members[node].rack == rack)


def best_standby(state: State) -> Member | None:
    """The standby to take a slot.

    Prefer a rack of which this incident has lost no node, then a rack with few nodes of the job, as copies have to find
    another rack; then the standby that joined first."""
    ready = [m for m in state.members.values() if m.role is Role.STANDBY and not m.suspected]
    if len(ready) < 2 or not any(member.rack for member in ready):
        return ready[0] if ready else None
    facts = state.incident.facts if state.incident is not None else None
    gone = {lost.rack for lost in facts.lost} if facts is not None else set()
    taken = Counter(of_nodes(state, state.active_nodes).values())
    return min(ready, key=lambda member: (bool(member.rack) and member.rack in gone, taken[member.rack]))
