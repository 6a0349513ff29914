"""The nodes that watch the links between them: on several hosts, each a few others, and always both of a pair.

Pure. Up to `MOST` others all of them; above, those at distances 1, 2, 4 and 8 in the order of slots, which is that of
rings, so that what a job sends between hosts is watched, and each node is seen by several.
"""

from everstep.core.state.policy import Policy
from everstep.core.state.schema import State
from everstep.model.facts import Neighbour

MOST = 8
_STEPS = (1, 2, 4, 8)


def of_all(state: State, policy: Policy) -> dict[str, tuple[Neighbour, ...]]:
    """By node. Empty on one machine, and where nothing is to be watched."""
    if state.spec is None or not state.spec.on_hosts or not policy.watch_links:
        return {}
    known = [
        Neighbour(node=node, address=member.endpoint)
        for node in state.slots
        if node is not None and (member := state.members.get(node)) is not None and member.endpoint
    ]
    return {each.node: _of(place, known) for place, each in enumerate(known)}


def _of(place: int, known: list[Neighbour]) -> tuple[Neighbour, ...]:
    num = len(known)
    if num <= MOST + 1:
        places = [other for other in range(num) if other != place]
    else:
        places = sorted({(place + sign * step) % num for step in _STEPS for sign in (1, -1)} - {place})
    own = _machine(known[place])
    return tuple(known[other] for other in places if _machine(known[other]) != own)


def _machine(each: Neighbour) -> str:
    return each.address.rpartition(":")[0]
