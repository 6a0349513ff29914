"""Faults on request: checked, put on record, and handed to whoever can cause them."""

from everstep.core.state import Phase
from everstep.core.turn import Turn
from everstep.model.actions import Inject, Refused
from everstep.model.events import DrillFailed, DrillRequested

HANG_KINDS = ("stop", "python-loop", "native-call")
RANK_KINDS = ("kill-rank", "exit", "raise", "oom", *HANG_KINDS)
NODE_KINDS = ("kill-agent",)
RUN_KINDS = ("kill-controller",)


def on_drill_requested(turn: Turn, event: DrillRequested) -> None:
    if event.kind in RANK_KINDS:
        _inject_rank(turn, event)
    elif event.kind in NODE_KINDS:
        _inject_node(turn, event)
    elif event.kind in RUN_KINDS:
        turn.do(_inject(turn, event))
    else:
        known = ", ".join((*RANK_KINDS, *NODE_KINDS, *RUN_KINDS))
        _refuse(turn, event, f"there is no such drill; there are: {known}")


def on_drill_failed(turn: Turn, event: DrillFailed) -> None:
    if turn.state.pending_drill == event.drill:
        turn.set(pending_drill=None)
    turn.do(Refused(what=f"drill {event.drill}", why=event.why))


def _inject_rank(turn: Turn, event: DrillRequested) -> None:
    worker = None if event.rank is None else turn.state.workers.get(event.rank)
    if worker is None:
        _refuse(turn, event, f"there is no rank {event.rank}; ranks are 0 to {turn.spec.world_size - 1}")
    elif event.kind in HANG_KINDS and not turn.policy.watch_hangs:
        _refuse(turn, event, "this run does not look for hangs, so nothing would end it (policy watch_hangs)")
    elif worker.exit is not None or turn.state.phase not in (Phase.FORMING, Phase.RUNNING):
        _refuse(turn, event, f"rank {event.rank} has no live process now (the run is {turn.state.phase})")
    else:
        turn.set(pending_drill=event.drill)
        turn.do(_inject(turn, event, node=worker.node))


def _inject_node(turn: Turn, event: DrillRequested) -> None:
    node = event.node or next(iter(turn.state.active_nodes), None)
    if node is None or node not in turn.state.active_nodes:
        _refuse(turn, event, f"no node {node!r} holds a slot; those that do: {list(turn.state.active_nodes)}")
    else:
        turn.set(pending_drill=event.drill)
        turn.do(_inject(turn, event, node=node))


def _inject(turn: Turn, event: DrillRequested, node: str | None = None) -> Inject:
    generation = turn.state.generation
    why = f"drill {event.drill} was asked for"
    return Inject(drill=event.drill, kind=event.kind, node=node, rank=event.rank, generation=generation, why=why)


def _refuse(turn: Turn, event: DrillRequested, why: str) -> None:
    turn.do(Refused(what=f"drill {event.drill} ({event.kind})", why=why))
