"""An incident begins with the first sign of a fault; what is known of the job at that moment is kept with it."""

from collections.abc import Sequence

import msgspec

from everstep.analyzer.exits import FaultFacts
from everstep.analyzer.standing import Left
from everstep.core.faults import drills
from everstep.core.run import standstill
from everstep.core.state.frozenmap import FrozenMap
from everstep.core.state.schema import Incident
from everstep.core.state.turn import Turn
from everstep.core.state.workers import Worker
from everstep.model.actions import IncidentClosed, IncidentOpened
from everstep.model.facts import Exit

OUTLIVED_S = 30.0
"""Steps so long after a line of the kernel's speak against it: a device is a few steps behind its host at most."""


def open_incident(turn: Turn, facts: FaultFacts, ended: Exit | None = None) -> None:
    """A fault begins an incident, unless it belongs to the one whose ranks are not even restarted yet.

    Which rank is on which node, how ranks have ended so far (`ended`: just now), and what nodes have noticed, is added
    here.
    """
    state, current = turn.state, turn.state.incident
    if current is not None and not current.restarted:
        if ended is not None:
            add_exits(turn, ended)
        return
    if state.standstill is not None:
        standstill.close(turn, "superseded", "something else happened before the standstill was over")
    if current is not None:
        why = "another fault came before the job had recovered from this one"
        turn.do(IncidentClosed(incident=current.id, outcome="superseded", why=why))
    workers, number = tuple(state.workers.values()), state.num_incidents + 1
    exits = [worker.exit for worker in workers if worker.exit is not None and not worker.exit.succeeded]
    outlived_at = _outlived_at(state.outlived_at, workers)
    incident = Incident(
        id=f"i{number}",
        opened_at=turn.at,
        lived_s=0.0 if state.formation is None else max(0.0, turn.at - state.formation.at),
        generation=state.generation,
        facts=msgspec.structs.replace(
            facts,
            alerts=state.alerts,
            nodes={worker.rank: worker.node for worker in workers},
            left=facts.left or _left(workers),
            outlived_at=outlived_at,
            stood=None if state.standstill is None else state.standstill.incident.facts.hang,
        ),
        exits=FrozenMap({exit_.rank: exit_ for exit_ in exits}),
        drill=drills.claim(turn, facts) if state.pending_drills else None,
    )
    turn.set(incident=incident, num_incidents=number, outlived_at=outlived_at)
    turn.do(IncidentOpened(incident=incident.id, drill=incident.drill, why="the first sign of a fault"))


def add_exits(turn: Turn, *exits: Exit) -> None:
    """Ranks that have ended since."""
    incident = turn.state.incident
    if incident is not None and exits:
        turn.set_incident(exits=incident.exits.updated({exit_.rank: exit_ for exit_ in exits}))


def _left(workers: Sequence[Worker]) -> tuple[Left, ...]:
    """Ranks that ended with exit code 0, of a generation that others are still in."""
    return tuple(
        Left(rank=each.rank, at=each.exit.at, step=each.account.last_step if each.account is not None else None)
        for each in workers
        if each.exit is not None and each.exit.succeeded
    )


def _outlived_at(known: float | None, workers: Sequence[Worker]) -> float | None:
    """Return the time before which nothing that nodes noticed stopped the job: a whole generation began to step after
    it, or made steps for long after it. `known`: the result so far."""
    accounts = [worker.account for worker in workers]
    firsts = [each.first_step_at for each in accounts if each is not None and each.first_step_at is not None]
    lasts = [each.last_step_at for each in accounts if each is not None and each.last_step_at is not None]
    if not accounts or len(firsts) < len(accounts) or len(lasts) < len(accounts):
        return known
    newest = max(max(firsts), min(lasts) - OUTLIVED_S)
    return newest if known is None else max(known, newest)
