"""Nodes come, go and come back. Roles and slots; what the loss of a node means for the run."""

import itertools
import math

import msgspec

from everstep.core.faults import incidents
from everstep.core.restore import holdings, persistence, racks
from everstep.core.run import elastic
from everstep.core.run.ending import finish_if_saved, give_up
from everstep.core.run.forming import acquire, form_if_possible
from everstep.core.state.phases import Phase
from everstep.core.state.schema import Member, Role
from everstep.core.state.timers import Timer, TimerKind
from everstep.core.state.turn import Turn
from everstep.model.actions import EvictNode, Refused, ReleaseNode, SettleDoubt
from everstep.model.events import NodeInDoubt, NodeJoined, NodeLost, NodeRefused, NodeSilent, NodeSpared
from everstep.model.facts import Held

STANDBY_AGAIN_S = 60.0
"""Between two attempts to get a standby that the engine could not give."""

MAX_FAILED_JOINS = 5
"""Agents in a row that end before they join: then it is not bad luck, and asking again only hides the reason."""


LATE_LIMIT_S = 60.0
"""A node that is silent for so long is ended, also when it lives: nothing can be done with it."""

FED_S, FED_TIMES, TOGETHER_S = 60.0, 2, 3.0
"""Losses by silence that follow each other so closely may be each other's cause; within TOGETHER_S they are one."""

PATIENT_S = 10.0
"""A node's silence that may be the doing of such losses is borne for so long."""

_FED = (
    f"nodes were lost by silence {FED_TIMES} times within {FED_S:g} s, and each start of another one takes CPUs from "
    f"the rest: it is ended when it has been silent for {PATIENT_S:g} s"
)


def on_node_joined(turn: Turn, event: NodeJoined) -> None:
    known = turn.state.members.get(event.node)
    if known is not None and known.role is Role.OUT:
        _fence(turn, event)
        return
    if known is None:
        turn.set(requests=turn.state.requests[1:], failed_joins=0)
        _admit(turn, event)
    member = msgspec.structs.replace(turn.state.members[event.node], endpoint=event.endpoint, rack=event.rack)
    turn.set_members(member)
    held, others = holdings.divided(turn.state, event.held)
    turn.set(copies=turn.state.copies.updated({event.node: (*event.backups, *others)}))
    if member.slot is not None and turn.state.phase not in (Phase.FORMING, Phase.RUNNING):
        _note_held(turn, held, member.slot)
    form_if_possible(turn)


def on_node_lost(turn: Turn, event: NodeLost) -> None:
    member = turn.state.members.get(event.node)
    if member is None:
        # It died before it said hello: the request stays open, so ask again.
        _ask_again(turn, event)
        return
    if member.role is Role.OUT:
        return
    if member.silent:
        _note_silenced(turn)
        event = msgspec.structs.replace(event, reason=member.silent, exit_code=None, signal=None)
    _put_out(turn, member)
    turn.do(ReleaseNode(node=event.node, why=f"{event.node} is lost: {event.reason}"))
    persistence.on_node_lost(turn, event.node)
    if finish_if_saved(turn):
        return
    if member.slot is None:
        if turn.state.ending is None:
            acquire(turn, f"standby {event.node} is lost: {event.reason}", is_urgent=False)
        incidents.on_examined_lost(turn, event.node, event.reason)
        return
    incidents.on_slot_lost(turn, event, member)
    incidents.on_examined_lost(turn, event.node, event.reason)
    if not turn.state.is_over and turn.state.ending is None:
        fill_slots(turn)
        form_if_possible(turn)


def on_node_silent(turn: Turn, event: NodeSilent) -> None:
    """Evict a silent node, which is cut off or frozen, before its slot is reassigned. Its loss is what counts. The
    engine spares one that it finds alive and only late."""
    member = turn.state.members.get(event.node)
    if member is None or member.role is Role.OUT or member.silent:
        return
    why = f"nothing was heard of it for {event.silent_s:.1f} s; policy node_silent_s = {turn.policy.node_silent_s:g}"
    if event.silent_s < PATIENT_S and _feed_each_other(turn):
        turn.do(Refused(what=f"end {event.node}", why=f"{why}; {_FED}"))
        return
    may_be_late = event.silent_s < LATE_LIMIT_S and not member.suspected and not _is_evicted(turn, event.node)
    turn.set_members(msgspec.structs.replace(member, suspected=True, silent=why, may_be_late=may_be_late))
    turn.do(EvictNode(node=event.node, is_silent=True, may_spare=may_be_late, why=f"{event.node}: {why}"))


def on_node_spared(turn: Turn, event: NodeSpared) -> None:
    """It is only late: as if nothing had been said of it."""
    member = turn.state.members.get(event.node)
    if member is not None and member.may_be_late and member.role is not Role.OUT:
        turn.set_members(msgspec.structs.replace(member, suspected=False, silent="", may_be_late=False))


def _feed_each_other(turn: Turn) -> bool:
    """Whether silent nodes were lost within the last minute, and others after those had been replaced: each start takes
    CPUs from the rest. Nodes lost at the same time, as those of a rack are, count once."""
    recent = [at for at in turn.state.silenced if turn.at - at < FED_S]
    return sum(at - before > TOGETHER_S for before, at in itertools.pairwise((-math.inf, *recent))) >= FED_TIMES


def _note_silenced(turn: Turn) -> None:
    recent = (at for at in turn.state.silenced if turn.at - at < FED_S)
    turn.set(silenced=(*recent, turn.at))


def _is_evicted(turn: Turn, node: str) -> bool:
    return turn.state.incident is not None and node in turn.state.incident.evicting


def on_node_in_doubt(turn: Turn, event: NodeInDoubt) -> None:
    """It stood still, or was cut off, and can talk again. What is decided before this is over for it; what is decided
    after this reaches it."""
    member = turn.state.members.get(event.node)
    if member is not None and member.role is Role.OUT:
        _fence(turn, event)
        return
    if member is not None and member.may_be_late:
        return  # the engine is asked whether it lives; the node asks again
    is_ending = member is not None and (member.suspected or _is_evicted(turn, event.node))
    why_not = ((member.silent if member is not None else "") or "it is being evicted") if is_ending else ""
    why = why_not or f"nothing of it arrived for {event.silent_s:.1f} s, and no node was started in its place"
    turn.do(SettleDoubt(node=event.node, number=event.number, may_go_on=not why_not, why=why))


def on_node_refused(turn: Turn, event: NodeRefused) -> None:
    if turn.state.num_vacant and not elastic.can_shrink(turn.state):
        give_up(turn, f"no node to be had for a slot: {event.why}")
    else:
        turn.set(requests=turn.state.requests[1:])
        turn.do(Refused(what="another node" if turn.spec.is_elastic else "another standby", why=event.why))
        why = "a standby is missing; the engine may have one by then"
        turn.start_timer(Timer(TimerKind.STANDBY), STANDBY_AGAIN_S, why)


def on_standby_timer(turn: Turn, _subject: str, _due_at: float) -> None:
    """Ask again for what was refused."""
    elastic.ask_for_missing(turn)


def fill_slots(turn: Turn) -> None:
    """Give every empty slot a standby; ask the engine for what is missing."""
    if not turn.state.num_vacant:
        return
    for slot in [slot for slot, node in enumerate(turn.state.slots) if node is None]:
        standby = racks.best_standby(turn.state)
        if standby is not None:
            _give_slot(turn, standby, slot)
            acquire(turn, f"standby {standby.node} took slot {slot}", is_urgent=False)
        else:
            acquire(turn, f"slot {slot} lost its node and no standby is left")


def _admit(turn: Turn, event: NodeJoined) -> None:
    wanted = event.meant_for
    member = Member(
        node=event.node, host=event.host, pid=event.pid, role=Role.STANDBY, rack=event.rack, meant_for=wanted
    )
    turn.set_members(member)
    if wanted is not None and 0 <= wanted < turn.spec.num_slots and _make_room(turn, wanted):
        _give_slot(turn, member, wanted)
    elif turn.state.first_vacant is not None:
        _give_slot(turn, member, turn.state.first_vacant)


def _make_room(turn: Turn, slot: int) -> bool:
    """Whether the slot can be had by the node that is meant for it. Until all are there, one that was put there only
    because it came first leaves it for another one."""
    holder = turn.state.slots[slot]
    if holder is None:
        return True
    member = turn.state.members[holder]
    elsewhere = turn.state.first_vacant
    if elsewhere is None or member.meant_for == slot or turn.state.generation >= 0:
        return False
    turn.give_slot(slot, None)
    _give_slot(turn, member, elsewhere)
    return True


def _give_slot(turn: Turn, member: Member, slot: int) -> None:
    turn.set_members(msgspec.structs.replace(member, role=Role.ACTIVE, slot=slot))
    turn.give_slot(slot, member.node)


def _put_out(turn: Turn, member: Member) -> None:
    turn.set_members(msgspec.structs.replace(member, role=Role.OUT, slot=None))
    turn.set(copies=turn.state.copies.without(member.node))
    if member.slot is not None:
        turn.give_slot(member.slot, None)


def _note_held(turn: Turn, held: tuple[Held, ...], slot: int) -> None:
    ranks = turn.spec.ranks_of(slot)
    turn.set(held=turn.state.held.updated({item.rank: item for item in held if item.rank in ranks}))


def _fence(turn: Turn, event: NodeJoined | NodeInDoubt) -> None:
    why = f"{event.node} was declared lost in this run; its slot may be taken, and ids never come back"
    turn.do(Refused(what=f"readmit {event.node}", why=why))
    turn.do(ReleaseNode(node=event.node, why=why))


def _ask_again(turn: Turn, event: NodeLost) -> None:
    failed = turn.state.failed_joins + 1
    turn.set(failed_joins=failed, requests=turn.state.requests[1:])
    if failed >= MAX_FAILED_JOINS:
        give_up(turn, f"{failed} agents in a row ended before they joined; the last one: {event.reason}")
    else:
        acquire(turn, f"{event.node} ended before it joined: {event.reason}")
