"""How a run ends: success, giving up, a stop from outside, or a mode that forbids to act. With a persistent tier, the
last step goes there first."""

import msgspec

from everstep.core.restore import persistence
from everstep.core.run import standstill, stopping
from everstep.core.state.frozenmap import Names
from everstep.core.state.phases import ALIVE, Phase
from everstep.core.state.schema import Ending
from everstep.core.state.turn import Turn
from everstep.errors import EXIT_GAVE_UP, EXIT_NOT_ALLOWED_TO_ACT
from everstep.model.actions import Finish, IncidentClosed
from everstep.model.events import StopRequested


def on_stop_requested(turn: Turn, event: StopRequested) -> None:
    save_by = turn.at + turn.policy.notice_s
    why = f"stopped by {event.why}"
    ended = Ending(outcome="stopped", exit_code=128 + event.signal, why=why, signal=event.signal, save_by=save_by)
    stop_with(turn, ended)


def stop_with(turn: Turn, ending: Ending) -> None:
    """End the run in this way, after the workers."""
    if turn.state.phase is Phase.SAVING:
        _end_sooner(turn, ending)
        return
    if turn.state.phase is Phase.STOPPING:
        turn.set(ending=_hurried(turn.state.ending, ending))
        stopping.hurry(turn, ending.why)
        return
    nodes = turn.state.active_nodes
    if turn.state.phase not in ALIVE or not nodes:
        finish(turn, ending)
        return
    turn.enter(Phase.STOPPING, waiting=Names(nodes), ending=ending)
    turn.do(*stopping.stops(turn, nodes, ending.why, save_s=turn.policy.save_s, signal=ending.signal))


def _end_sooner(turn: Turn, ending: Ending) -> None:
    """Shorten an ending that is already under way.

    A stop request is honoured within its notice, a second one at once; any other reason to end changes nothing."""
    before = turn.state.ending or ending
    if ending.save_by is None:
        return
    if before.save_by is not None:
        _finish_now(turn, before)
        return
    turn.set(ending=_hurried(before, ending))
    persistence.hurry(turn, ending.save_by)


def _hurried(before: Ending | None, ending: Ending) -> Ending:
    """The first ending says how; whichever is in a hurry says by when."""
    if before is None or before.save_by is not None:
        return before or ending
    return msgspec.structs.replace(before, save_by=ending.save_by)


def succeed(turn: Turn) -> None:
    if turn.state.incident is not None and turn.incident.restarted:
        _close_incident(turn, "run-ended", "the program ended with success on every rank")
    elif turn.state.incident is not None and turn.incident.facts.hang is not None:
        _close_incident(turn, "dismissed", "it did not hang: the program ended with success on every rank")
    finish(turn, Ending(outcome="succeeded", exit_code=0, why="every rank ended with exit code 0"))


def give_up(turn: Turn, why: str) -> None:
    """Also when workers live; they are ended first."""
    stop_with(turn, gave_up(why))


def gave_up(why: str) -> Ending:
    return Ending(outcome="gave-up", exit_code=EXIT_GAVE_UP, why=why)


def finish_unallowed(turn: Turn, why: str) -> None:
    finish(turn, Ending(outcome="failed", exit_code=EXIT_NOT_ALLOWED_TO_ACT, why=why))


def finish(turn: Turn, ending: Ending) -> None:
    if not persistence.save_first(turn, ending):
        _finish_now(turn, ending)


def finish_if_saved(turn: Turn) -> bool:
    """Whether the run is over because the last step is in the persistent tier, or will not get there."""
    ending = turn.state.ending
    if turn.state.phase is not Phase.SAVING or turn.state.persisting is not None or ending is None:
        return False
    _finish_now(turn, ending)
    return True


def _finish_now(turn: Turn, ending: Ending) -> None:
    if ending.outcome == "succeeded":
        standstill.close(turn, "passed", "it continued by itself: the program ended with success on every rank")
    else:
        standstill.close(turn, "stopped" if ending.outcome == "stopped" else "superseded", ending.why)
    if turn.state.incident is not None:
        _close_incident(turn, "stopped" if ending.outcome == "stopped" else "gave-up", ending.why)
    turn.drop_timers()
    turn.enter(Phase.OVER, ending=ending, waiting=Names(), persisting=None)
    turn.do(Finish(outcome=ending.outcome, exit_code=ending.exit_code, why=ending.why))


def _close_incident(turn: Turn, outcome: str, why: str) -> None:
    turn.do(IncidentClosed(incident=turn.incident.id, outcome=outcome, why=why))
    turn.set(incident=None)
