"""How a run ends: success, giving up, a stop from outside, or a mode that forbids to act."""

from everstep.core.state import Ending, Phase
from everstep.core.turn import Turn
from everstep.errors import EXIT_GAVE_UP, EXIT_NOT_ALLOWED_TO_ACT
from everstep.model.actions import Finish, IncidentClosed, StopWorkers
from everstep.model.events import StopRequested

_WORKERS_MAY_LIVE = (Phase.FORMING, Phase.RUNNING, Phase.SETTLING)


def on_stop_requested(turn: Turn, event: StopRequested) -> None:
    stop_with(turn, Ending(outcome="stopped", exit_code=128 + event.signal, why=f"stopped by {event.why}"))


def stop_with(turn: Turn, ending: Ending) -> None:
    """End the run in this way, after the workers."""
    if turn.state.phase is Phase.STOPPING:
        turn.set(ending=turn.state.ending or ending)
        return
    nodes = turn.state.active_nodes
    if turn.state.phase not in _WORKERS_MAY_LIVE or not nodes:
        finish(turn, ending)
        return
    turn.set(phase=Phase.STOPPING, waiting=nodes, ending=ending)
    for node in nodes:
        grace_s = turn.policy.stop_grace_s
        turn.do(StopWorkers(node=node, generation=turn.state.generation, grace_s=grace_s, why=ending.why))


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
    if turn.state.incident is not None:
        _close_incident(turn, "stopped" if ending.outcome == "stopped" else "gave-up", ending.why)
    turn.drop_timers()
    turn.set(phase=Phase.OVER, ending=ending, waiting=())
    turn.do(Finish(outcome=ending.outcome, exit_code=ending.exit_code, why=ending.why))


def _close_incident(turn: Turn, outcome: str, why: str) -> None:
    turn.do(IncidentClosed(incident=turn.incident.id, outcome=outcome, why=why))
    turn.set(incident=None)
