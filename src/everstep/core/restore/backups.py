"""When the snapshots of ranks are copied to other nodes, and to which: once all ranks run, after a restart from memory
or disk as soon as their processes are there, and again when their groups are known better. `placement` says where; the
agents copy. No recovery waits for any of it.

A lost machine takes the copies along that it held: until those are made again, the next loss would cost steps. Ranks
whose copy is still where it belongs only say so.
"""

import functools

from everstep.core.restore import racks
from everstep.core.restore.placement import Placement, place
from everstep.core.state.phases import Phase
from everstep.core.state.schema import State
from everstep.core.state.turn import Turn
from everstep.model.actions import PlaceBackups, Refused
from everstep.model.events import GroupsLearned
from everstep.model.facts import Backup, RankGroup

NO_OTHER = "no other node shares less"

MAX_WHYS = 4
"""Distinct reasons reported for one placement; each stands for many ranks."""


def on_groups_learned(turn: Turn, event: GroupsLearned) -> None:
    if event.groups == turn.state.groups:
        return
    turn.set(groups=event.groups)
    if turn.state.phase in (Phase.FORMING, Phase.RUNNING) and turn.state.backups_generation == turn.state.generation:
        _place(turn)


def place_once(turn: Turn) -> None:
    """There are snapshots that are worth a copy, or will be soon. Once in a generation."""
    if turn.state.backups_generation != turn.state.generation:
        _place(turn)


def placement_of(state: State) -> Placement:
    """The placement on the nodes that are there now."""
    ranks_of_node: dict[str, list[int]] = {}
    for rank, worker in sorted(state.workers.items()):
        ranks_of_node.setdefault(worker.node, []).append(rank)
    known = tuple(sorted(racks.of_nodes(state, ranks_of_node).items()))
    return _placed(tuple((node, tuple(ranks)) for node, ranks in ranks_of_node.items()), state.groups, known)


@functools.lru_cache(maxsize=4)
def _placed(
    ranks_of_node: tuple[tuple[str, tuple[int, ...]], ...],
    groups: tuple[RankGroup, ...],
    racks_of_nodes: tuple[tuple[str, str], ...],
) -> Placement:
    """Restarts in place ask the same again, and so does a controller that folds a long journal."""
    return place(dict(ranks_of_node), groups, dict(racks_of_nodes))


def place_actions(state: State, why: str) -> list[PlaceBackups]:
    """PlaceBackups of the current placement, for every node. Also used to issue them again."""
    if state.backups_generation != state.generation or not state.backups:
        return []
    of_node: dict[str, list[Backup]] = {}
    for rank, node in state.backups.items():
        backup = Backup(rank=rank, node=node, endpoint=state.members[node].endpoint)
        of_node.setdefault(state.workers[rank].node, []).append(backup)
    return [
        PlaceBackups(node=node, generation=state.generation, backups=tuple(backups), why=why)
        for node, backups in of_node.items()
    ]


def _place(turn: Turn) -> None:
    state = turn.state
    if not turn.policy.backup or len(state.active_nodes) < 2:
        return
    again = state.backups_generation == state.generation
    turn.set(backups_generation=state.generation)
    without = [node for node in state.active_nodes if not state.members[node].endpoint]
    if without:
        if not again:
            why = f"{without[0]} takes no snapshots of other nodes: it reported no address for them"
            turn.do(Refused(what="copy snapshots to another node", why=why))
        return
    placement = placement_of(state)
    turn.set(backups=placement.backups)
    if again:
        why = "the job's parallel groups are known now: no copy where the same eviction would take it"
    elif state.phase is Phase.FORMING:
        why = f"what generation {state.generation} resumes from must survive the next loss as well"
    else:
        why = f"every rank of generation {state.generation} is through; a lost machine must not cost its snapshots"
    if placement.backups != state.backups or not again:
        turn.do(*place_actions(turn.state, why))
    unprotected = _weaker(placement, "group and rack" if racks.known(state) else "group")
    for what, reason in unprotected:
        if (what, reason) not in state.unprotected:  # once, and not with every restart
            turn.do(Refused(what=what, why=reason))
    turn.set(unprotected=unprotected)


def _weaker(placement: Placement, unit: str) -> tuple[tuple[str, str], ...]:
    """List what the placement cannot protect from; a reason that many ranks share is listed once."""
    ranks_by_why: dict[str, list[int]] = {}
    for rank, why in placement.weaker.items():
        limit = "nodes of other racks have no room for more copies" if rank in placement.crowded else NO_OTHER
        ranks_by_why.setdefault(f"{why}; {limit}", []).append(rank)
    told = [
        (f"a copy of {_ranks(ranks)} that outlives every {unit}", why)
        for why, ranks in sorted(ranks_by_why.items(), key=lambda item: -len(item[1]))
    ]
    return tuple(told[:MAX_WHYS])


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"
