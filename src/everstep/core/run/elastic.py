"""`--nnodes MIN:MAX`: when the job continues with fewer nodes, and when it takes in those that came.

It shrinks between two generations: a slot has no node, MIN are there, and no node has come for `shrink_after_s`. It
grows at a step boundary: a node waits, others have had `grow_after_s` to come as well, and all ranks end in order, with
the snapshot of their last step. `State.spec` has the current size. What memory holds is then of a generation with
another world size: `holdings` offers it as such, and ranks redistribute it.
"""

import msgspec

from everstep.core.run import stopping
from everstep.core.run.ending import give_up
from everstep.core.run.forming import acquire, form_if_possible
from everstep.core.state.frozenmap import FrozenMap, Names
from everstep.core.state.phases import Phase
from everstep.core.state.schema import Member, Role, State
from everstep.core.state.timers import Timer, TimerKind
from everstep.core.state.turn import Turn
from everstep.model.actions import Refused, Resized
from everstep.model.events import SizeFixed
from everstep.model.facts import Held
from everstep.model.spec import Mode

LONGEST_GROW_S = 1800.0
"""A node that comes and goes all day is taken in twice an hour at most."""


def look(turn: Turn) -> None:
    """Start or drop the timers that concern the job's size, from the state as it is now. Called after every event of a
    job whose size may change."""
    state = turn.state
    if state.is_over:
        return
    _keep_timer(turn, TimerKind.SHRINK, _shrink_after_s(turn), "missing nodes are waited for no longer")
    is_short = state.phase is Phase.GATHERING and state.num_vacant > 0 and not can_shrink(state)
    least_s = turn.policy.node_timeout_s if is_short else None
    _keep_timer(turn, TimerKind.LEAST, least_s, "as many nodes as the job needs are there by then")
    _keep_timer(turn, TimerKind.GROW, _grow_after_s(turn), "nodes that came are taken in")


def on_size_fixed(turn: Turn, event: SizeFixed) -> None:
    """From now on missing nodes are waited for, and nodes that come are standbys."""
    slots = event.world_size // turn.spec.nproc_per_node
    if turn.spec.is_elastic and turn.spec.min_slots <= slots <= turn.spec.max_slots:
        turn.set(fixed_slots=slots, fixed_why=event.why)
        turn.do(Refused(what="change the number of nodes", why=event.why))


def on_shrink_timer(turn: Turn, generation: str, due_at: float) -> None:
    if generation != str(turn.state.generation + 1) or _shrink_after_s(turn) is None:
        return
    spec, nodes = turn.spec, turn.state.active_nodes
    waited_s = turn.at - due_at + turn.policy.shrink_after_s
    since = turn.at - turn.policy.budget_window_s
    if turn.state.generation >= 0:
        turn.set(shrinks=(*(at for at in turn.state.shrinks if at > since), turn.at))
    missing = spec.num_slots - len(nodes)
    begins = "the job starts" if turn.state.generation < 0 else "it continues"
    why = (
        f"{missing} of {spec.num_slots} nodes missing for {waited_s:.0f} s (policy shrink_after_s), at least "
        f"{spec.min_slots} needed: {begins} with {len(nodes)}"
    )
    resize(turn, nodes, waited_s, why)
    form_if_possible(turn)


def on_least_timer(turn: Turn, generation: str, _due_at: float) -> None:
    state, spec = turn.state, turn.spec
    if generation == str(state.generation + 1) and state.phase is Phase.GATHERING and not can_shrink(state):
        needed = f"{spec.num_slots}, and {state.fixed_why}" if state.fixed_slots else f"at least {spec.min_slots}"
        there = f"{_num_present(state)} of {spec.num_slots} nodes are there, it needs {needed}"
        give_up(turn, f"no node came within {turn.policy.node_timeout_s:g} s (policy node_timeout_s): {there}")


def on_grow_timer(turn: Turn, generation: str, _due_at: float) -> None:
    """End the generation in order, snapshots first."""
    if not turn.is_current(generation) or _grow_after_s(turn) is None:
        return
    state, nodes = turn.state, turn.state.active_nodes
    num = len(_taken_in(state))
    turn.enter(Phase.STOPPING, waiting=Names(nodes), growing=num)
    step, after_s = stopping.boundary(turn)
    when = "now" if step is None else f"after step {step}"
    why = f"{num} {'node waits' if num == 1 else 'nodes wait'}: all ranks end {when}, and go on with them"
    turn.do(*stopping.stops(turn, nodes, why, save_s=turn.policy.save_s, after_step=step, after_s=after_s))


def before_gathering(turn: Turn) -> None:
    """The workers of a generation have ended: the one place where a size may change without a cost of its own."""
    state, spec = turn.state, turn.spec
    if state.fixed_slots and state.fixed_slots != spec.num_slots:
        _return_to(turn, state.fixed_slots)
        return
    new = _taken_in(state) if spec.mode is Mode.ACT else ()
    if new and not state.fixed_slots and not state.num_vacant:
        cause = "joined while it ran" if state.growing else "all ranks start again anyway"
        waited_s = _patience_s(turn) if state.growing else 0.0
        nodes = (*state.active_nodes, *(member.node for member in new))
        resize(turn, nodes, waited_s, f"{', '.join(m.node for m in new)} taken in: {cause}")


def resize(turn: Turn, nodes: tuple[str, ...], waited_s: float, why: str, num_slots: int = 0) -> None:
    """These nodes hold the slots from now on, in this order. What is in memory is of the size before."""
    state, before = turn.state, turn.spec
    spec = msgspec.structs.replace(before, num_slots=num_slots or len(nodes))
    turn.set(copies=_as_former(turn))
    kept = [
        msgspec.structs.replace(state.members[node], role=Role.ACTIVE, slot=slot) for slot, node in enumerate(nodes)
    ]
    turn.set(spec=spec, held=FrozenMap(), groups=())
    turn.set_members(*kept)
    turn.empty_slots()
    for slot, node in enumerate(nodes):
        turn.give_slot(slot, node)
    turn.do(
        Resized(
            num_before=before.num_slots,
            num_slots=spec.num_slots,
            world_size=spec.world_size,
            nodes=nodes,
            waited_s=waited_s,
            why=why,
        )
    )
    ask_for_missing(turn)


def ask_for_missing(turn: Turn) -> None:
    """Standbys, and nodes beyond the slots as long as there is room for them."""
    spec, state = turn.spec, turn.state
    room = state.num_vacant + spec.max_slots - spec.num_slots if spec.is_elastic else 0
    coming = sum(m.role is Role.STANDBY for m in state.members.values()) + len(state.requests)
    for _ in range(room + spec.num_standby - coming):
        acquire(
            turn, f"{coming} of {room + spec.num_standby} nodes beside the job's are there or coming", is_urgent=False
        )


def can_shrink(state: State) -> bool:
    """Whether missing nodes do not keep the job from going on."""
    return can_shrink_by(state, 0)


def can_shrink_by(state: State, num_nodes: int) -> bool:
    """Return whether the job could still shrink if so many more nodes were missing."""
    spec = state.spec
    if spec is None or not spec.is_elastic or state.fixed_slots:
        return False
    return _num_present(state) - num_nodes >= spec.min_slots


def _return_to(turn: Turn, num_slots: int) -> None:
    """Go back to the only number of nodes with which the program can continue."""
    kept = turn.state.active_nodes[:num_slots]
    extra = tuple(
        msgspec.structs.replace(turn.state.members[node], role=Role.STANDBY, slot=None)
        for node in turn.state.active_nodes[num_slots:]
    )
    why = f"back to {num_slots} nodes, and it waits for them: {turn.state.fixed_why}"
    resize(turn, kept, 0.0, why, num_slots)
    turn.set_members(*extra)


def _keep_timer(turn: Turn, kind: TimerKind, after_s: float | None, why: str) -> None:
    """Set it, where something is due and it is not set; forget it, where nothing is."""
    timer = Timer.of_generation(kind, turn.state.generation + (kind is not TimerKind.GROW))
    if after_s is None:
        if turn.has_timer(timer):
            turn.drop_timer(timer)
    elif not turn.has_timer(timer):
        turn.start_timer(timer, after_s, why)


def _shrink_after_s(turn: Turn) -> float | None:
    """None: it does not shrink now."""
    state, spec = turn.state, turn.spec
    num = _num_present(state)
    if state.phase is not Phase.GATHERING or not state.num_vacant or num < spec.min_slots:
        return None
    if state.fixed_slots:
        coming = state.generation + 1
        if state.shrink_refused != coming:
            turn.set(shrink_refused=coming)
            turn.do(
                Refused(what=f"go on with fewer nodes ({num})", why=f"{state.fixed_why}; it waits for the missing ones")
            )
        return None
    return turn.policy.shrink_after_s


def _grow_after_s(turn: Turn) -> float | None:
    """None: it does not grow now."""
    state = turn.state
    is_free = state.incident is None and state.standstill is None and not state.fixed_slots
    if state.phase is not Phase.RUNNING or not is_free or turn.spec.mode is not Mode.ACT:
        return None
    return _patience_s(turn) if _taken_in(state) else None


def _num_present(state: State) -> int:
    return len(state.slots) - state.num_vacant


def _patience_s(turn: Turn) -> float:
    since = turn.at - turn.policy.budget_window_s
    times = sum(at > since for at in turn.state.shrinks)
    return min(max(LONGEST_GROW_S, turn.policy.grow_after_s), turn.policy.grow_after_s * 2.0 ** max(0, times - 1))


def _taken_in(state: State) -> tuple[Member, ...]:
    """Standbys for which the job has room, in the order in which they came."""
    spec = state.spec
    room = 0 if spec is None or not spec.is_elastic else spec.max_slots - spec.num_slots
    ready = (m for m in state.members.values() if m.role is Role.STANDBY and not m.suspected)
    return tuple(ready)[: max(0, room)]


def _as_former(turn: Turn) -> FrozenMap[str, tuple[Held, ...]]:
    """All snapshots in memory by the node that holds them, marked with the world size that wrote them."""
    state, world = turn.state, turn.spec.world_size
    found: dict[str, list[Held]] = {
        node: [held if held.world_size else msgspec.structs.replace(held, world_size=world) for held in copies]
        for node, copies in state.copies.items()
    }
    for slot, node in enumerate(state.slots):
        for rank in turn.spec.ranks_of(slot) if node is not None else ():
            held = state.held.get(rank)
            if node is not None and held is not None:
                found.setdefault(node, []).append(msgspec.structs.replace(held, world_size=world))
    return FrozenMap((node, tuple(copies)) for node, copies in found.items())
