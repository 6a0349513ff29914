"""Snapshots that are whole and still not used: the State leaves out what a step changes, or the program does not load
what it saved.

To resume from the first would train on with other numbers; to try the second again would end the same way. In both
cases the program has its turn: it begins as it does under torchrun, from a checkpoint of its own if it has one. Pure.
"""

from everstep.core.state.schema import Flaw, State, Struck
from everstep.core.state.turn import Turn
from everstep.model.events import RestoreFailed, StateIncomplete


def on_state_incomplete(turn: Turn, event: StateIncomplete) -> None:
    """All that was kept so far is of the same State: it is not trusted either."""
    if event.generation != turn.state.generation or not turn.own_workers(event.node, (event.rank,)):
        return
    _note(turn, f"the State of rank {event.rank} is incomplete", event.why, is_unfit=False)
    struck = tuple(
        Struck(step=c.step, generation=turn.state.generation, at=turn.at, why=event.why, path=c.path)
        for c in turn.state.checkpoints
        if all(c.path != known.path for known in turn.state.struck)
    )
    if struck:
        turn.set(struck=(*turn.state.struck, *struck))


def note_unfit(turn: Turn, event: RestoreFailed) -> None:
    """A rank could not load a whole snapshot."""
    _note(turn, f"rank {event.rank} does not load the snapshot of step {event.step}", event.why, is_unfit=True)


def why_not(state: State) -> str:
    """Why the next generation is not to resume from a snapshot; empty: it may."""
    flaw = state.flaw
    if flaw is None or flaw.version != state.version:
        return ""
    return flaw.why if flaw.is_unfit or flaw.generation == state.generation else ""


def why_none(state: State) -> str:
    """Why the ranks of this generation need not keep snapshots; empty: they should. A State that was incomplete is
    looked at again by each generation: the program may be another one by then."""
    flaw = state.flaw
    return flaw.why if flaw is not None and flaw.is_unfit and flaw.version == state.version else ""


def _note(turn: Turn, what: str, why: str, *, is_unfit: bool) -> None:
    state = turn.state
    if state.flaw is None or state.flaw.generation != state.generation:
        turn.set(
            flaw=Flaw(why=f"{what} ({why})", generation=state.generation, version=state.version, is_unfit=is_unfit)
        )
