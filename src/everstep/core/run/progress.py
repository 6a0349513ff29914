"""Good news: ranks start, reach marks, make steps. Decides when a generation runs and when an incident is over."""

import msgspec

from everstep.analyzer.observations.words import ranks_text, verb
from everstep.core.restore import backups, persistence
from everstep.core.state.phases import Phase
from everstep.core.state.timers import Timer, TimerKind
from everstep.core.state.turn import Turn
from everstep.model.actions import IncidentClosed, Refused
from everstep.model.events import MarksReported, ProgressReported, WorkersStarted
from everstep.model.spec import Launch

LEAST_PROOF_S = 2.0
LONGEST_PROOF_S = 60.0
"""How long a generation without known steps has to live before it counts as recovered."""

LATE_S = 30.0
"""After the first rank called init_process_group: imports and downloads of the others differ by seconds."""


def on_workers_started(turn: Turn, event: WorkersStarted) -> None:
    own = turn.own_workers(event.node, dict.fromkeys(started.rank for started in event.started))
    turn.set_workers(*(msgspec.structs.replace(worker, started=True) for worker in own))
    is_restored = turn.state.formation is not None and turn.state.formation.resume_step is not None
    if is_restored and turn.state.phase is Phase.FORMING and not turn.state.tally.unstarted:
        backups.place_once(turn)  # what was to be fetched is there; until ranks step, a second loss must not cost more
    is_command = turn.spec.launch is Launch.COMMAND  # no runtime of ours inside: being started is all we will hear
    if is_command and not turn.state.tally.unstarted:
        _on_through(turn, turn.at)


def on_accounts(turn: Turn, event: MarksReported | ProgressReported) -> None:
    turn.set_accounts(event.node, event.accounts)
    if not turn.state.has_own_steps and any(account.counts_own_steps for account in event.accounts):
        turn.set(has_own_steps=True)
    _watch_rendezvous(turn)
    note_best_step(turn)
    if _matters(turn) and turn.state.tally.is_through(has_stepped=turn.state.has_stepped):
        _on_through(turn, _through_at(turn))


def _matters(turn: Turn) -> bool:
    """Whether the controller is waiting for every rank to get through."""
    is_closing = turn.state.incident is not None and turn.incident.restarted
    return turn.state.phase is Phase.FORMING or (turn.state.phase is Phase.RUNNING and is_closing)


def _on_through(turn: Turn, through_at: float) -> None:
    """Every rank is where it can train (or trains)."""
    if turn.state.phase is Phase.FORMING:
        turn.enter(Phase.RUNNING)
        backups.place_once(turn)
        persistence.start_clock(turn)
    if turn.state.phase is not Phase.RUNNING or turn.state.incident is None or not turn.incident.restarted:
        return
    if turn.state.has_stepped:
        _close_recovered(turn, through_at)
    else:
        _wait_and_see(turn, through_at)


def _wait_and_see(turn: Turn, through_at: float) -> None:
    """A program that reports no steps has recovered once it lives longer than the generation that failed."""
    timer = Timer.of_generation(TimerKind.RECOVERED, turn.state.generation)
    if turn.has_timer(timer):
        return
    turn.set_incident(through_at=through_at)
    after_s = min(LONGEST_PROOF_S, max(LEAST_PROOF_S, 1.1 * turn.incident.lived_s))
    turn.start_timer(timer, after_s, "no steps are known: it has recovered if it lives longer than before")


def on_recovered_timer(turn: Turn, generation: str, _due_at: float) -> None:
    """It has lived long enough, and no step was seen meanwhile that would prove more."""
    if turn.is_current(generation) and turn.state.phase is Phase.RUNNING and not turn.state.has_stepped:
        _close_unseen(turn)


def note_success(turn: Turn) -> None:
    """Every rank has ended with success: nothing more has to be seen."""
    if turn.has_timer(Timer.of_generation(TimerKind.RECOVERED, turn.state.generation)):
        _close_unseen(turn)


def _close_unseen(turn: Turn) -> None:
    incident = turn.state.incident
    if incident is not None and incident.restarted and incident.through_at is not None:
        _close_recovered(turn, incident.through_at)


def _through_at(turn: Turn) -> float:
    """When the slowest rank was through, now that all are."""
    workers = turn.state.workers.values()
    accounts = [w.account for w in workers if w.account is not None and not (w.exit is not None and w.exit.succeeded)]
    return max((a.first_step_at or a.rendezvous_done_at or a.entered_at or 0.0 for a in accounts), default=0.0)


def _close_recovered(turn: Turn, recovered_at: float) -> None:
    resumed_step = _resumed_step(turn)
    lost_steps = None
    if resumed_step is not None and turn.incident.best_step is not None and not turn.incident.unheard:
        lost_steps = max(0, turn.incident.best_step + 1 - resumed_step)
    why = f"every rank of generation {turn.state.generation} is through"
    if resumed_step is not None:
        why = f"every rank of generation {turn.state.generation} has done a step, the first one was step {resumed_step}"
    turn.do(
        IncidentClosed(
            incident=turn.incident.id,
            outcome="recovered",
            recovered_at=recovered_at,
            lost_steps=lost_steps,
            resumed_step=resumed_step,
            why=why,
        )
    )
    turn.set(incident=None, recovered=turn.incident)


def _resumed_step(turn: Turn) -> int | None:
    """Index of the first step of this generation; None when the job does not count its own steps."""
    accounts = [worker.account for worker in turn.state.workers.values() if worker.account is not None]
    firsts = [a.first_step for a in accounts if a.counts_own_steps and a.first_step is not None]
    return min(firsts, default=None)


def note_best_step(turn: Turn) -> None:
    if not turn.state.has_stepped and turn.state.tally.stepped:
        turn.set(has_stepped=True)
    completed = turn.state.tally.completed_step
    if completed is not None and (turn.state.best_step is None or completed > turn.state.best_step):
        turn.set(best_step=completed)


def _watch_rendezvous(turn: Turn) -> None:
    timer = Timer.of_generation(TimerKind.RENDEZVOUS, turn.state.generation)
    if turn.has_timer(timer) or turn.state.phase not in (Phase.FORMING, Phase.RUNNING):
        return
    if turn.state.tally.in_rendezvous:
        why = "every rank must be out of init_process_group by then"
        turn.start_timer(timer, turn.policy.rendezvous_timeout_s, why)
        soon = Timer.of_generation(TimerKind.LATE, turn.state.generation)
        turn.start_timer(soon, min(LATE_S, turn.policy.rendezvous_timeout_s), "ranks that are late by then are named")


def on_late_timer(turn: Turn, generation: str, _due_at: float) -> None:
    """Some wait in init_process_group for ranks that have not called it: said long before anything is done. Not while
    ranks are being stopped: which of them have ended is not known yet."""
    if not turn.is_current(generation) or turn.state.phase not in (Phase.FORMING, Phase.RUNNING):
        return
    accounts = {w.rank: w.account for w in turn.state.workers.values() if w.exit is None}
    waiting = [r for r, a in accounts.items() if a and a.rendezvous_begun_at and not a.rendezvous_done_at]
    late = [r for r, a in accounts.items() if a is None or a.rendezvous_begun_at is None]
    if not waiting or not late:
        return
    limit = f"{turn.policy.rendezvous_timeout_s:g} s (policy rendezvous_timeout_s)"
    why = (
        f"{ranks_text(late)} {verb(late, 'has', 'have')} not called init_process_group for {LATE_S:g} s, where "
        f"{ranks_text(waiting)} {verb(waiting, 'waits', 'wait')}; nothing is done before {limit}; `everstep doctor` "
        "shows the stacks"
    )
    turn.do(Refused(what=f"restart all {turn.spec.world_size} ranks", why=why))
