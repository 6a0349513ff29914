"""Actions that are still to be done, read off the state: for a controller that took over, and for a peer that came
back.

Level-triggered, so it can be called at any time: every action in it is idempotent at its receiver.
"""

import signal

from everstep.core.decide.examining import pending_actions as exams_to_answer
from everstep.core.faults.hangs import collect_actions
from everstep.core.restore.backups import place_actions
from everstep.core.restore.persistence import pending_actions
from everstep.core.restore.trust import strike_actions, trust_actions
from everstep.core.run import stopping
from everstep.core.run.forming import start_actions
from everstep.core.run.updates import pending_checks
from everstep.core.state.phases import ALIVE, Phase
from everstep.core.state.policy import Policy
from everstep.core.state.schema import State
from everstep.core.state.turn import Turn
from everstep.model.actions import AcquireNode, Action, EvictNode, Finish, OpenStore, ReleaseNode, SetTimer

_WHY = "issued again: it was not confirmed before the connection or the controller was lost"


def reissue(state: State, policy: Policy) -> list[Action]:
    """Unconfirmed actions, in the order in which they would have been carried out."""
    if state.phase is Phase.NEW:
        return []
    if state.is_over:
        return _finish(state)
    actions: list[Action] = []
    if state.store_asked > state.generation and state.store_asked not in state.stores:
        actions.append(OpenStore(generation=state.store_asked, why=_WHY))
    actions += [AcquireNode(request=request, why=_WHY) for request in state.requests]
    actions += [ReleaseNode(node=m.node, why=_WHY) for m in state.members.values() if m.role.value == "out"]
    actions += [
        EvictNode(node=m.node, is_silent=bool(m.silent), may_spare=m.may_be_late, why=_WHY)
        for m in state.members.values()
        if m.suspected and m.role.value != "out"
    ]
    actions += pending_checks(state, _WHY)
    if state.phase in ALIVE:
        actions += _unconfirmed_starts(state, policy)
        actions += trust_actions(Turn(state, policy, 0.0))
        actions += place_actions(state, _WHY)
        actions += strike_actions(state)
    if state.phase in (Phase.RUNNING, Phase.SETTLING, Phase.SAVING):
        actions += pending_actions(state, _WHY)
    if state.phase is Phase.SETTLING and state.incident is not None:
        actions += collect_actions(Turn(state, policy, 0.0))
    if state.phase is Phase.EXAMINING:
        actions += exams_to_answer(Turn(state, policy, 0.0), _WHY)
    if state.phase is Phase.STOPPING:
        evicting = state.incident.evicting if state.incident is not None else ()
        is_drill = state.incident is not None and state.incident.drill is not None
        actions += [EvictNode(node=n, is_drill=is_drill, why=_WHY) for n in evicting if n in state.waiting]
        nodes = [node for node in state.waiting if node not in evicting]
        number = signal.SIGTERM if state.ending is None else state.ending.signal
        actions += stopping.stops(Turn(state, policy, 0.0), nodes, _WHY, signal=number)
    actions += [SetTimer(key=key, due_at=due_at, why=_WHY) for key, due_at in state.timers.items()]
    return actions


def _unconfirmed_starts(state: State, policy: Policy) -> list[Action]:
    unconfirmed = {worker.node for worker in state.workers.values() if not worker.started}
    return [action for action in start_actions(Turn(state, policy, 0.0)) if action.node in unconfirmed]


def _finish(state: State) -> list[Action]:
    assert state.ending is not None
    return [Finish(outcome=state.ending.outcome, exit_code=state.ending.exit_code, why=state.ending.why)]
