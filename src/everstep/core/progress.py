"""Good news: ranks start, reach marks, make steps. Decides when a generation runs and when an incident is over."""

from everstep.core import backups, persistence
from everstep.core.state import Phase
from everstep.core.turn import Turn
from everstep.model.actions import IncidentClosed
from everstep.model.events import MarksReported, ProgressReported, WorkersStarted
from everstep.model.facts import RankAccount
from everstep.model.spec import Launch


def on_workers_started(turn: Turn, event: WorkersStarted) -> None:
    for started in event.started:
        if started.rank in turn.state.workers:
            turn.set_worker(started.rank, started=True, node=event.node)
    is_command = turn.spec.launch is Launch.COMMAND  # no runtime of ours inside: being started is all we will hear
    if is_command and all(worker.started for worker in turn.state.workers.values()):
        _on_through(turn, turn.at)


def on_accounts(turn: Turn, event: MarksReported | ProgressReported) -> None:
    for account in event.accounts:
        if account.rank in turn.state.workers:
            turn.set_worker(account.rank, account=account)
    _watch_rendezvous(turn)
    note_best_step(turn)
    through_at = _through_at(turn)
    if through_at is not None:
        _on_through(turn, through_at)


def _on_through(turn: Turn, through_at: float) -> None:
    """Every rank is where it can train (or trains)."""
    if turn.state.phase is Phase.FORMING:
        turn.set(phase=Phase.RUNNING)
        backups.place_once(turn)
        persistence.start_clock(turn)
    if turn.state.phase is Phase.RUNNING and turn.state.incident is not None and turn.incident.restarted:
        _close_recovered(turn, through_at)


def _through_at(turn: Turn) -> float | None:
    """When the slowest rank was through; None while some rank is not.

    A job that reported steps before is through at its first new step. One that never did is through when it has
    entered the program and left rendezvous: nothing more can be seen of it.
    """
    latest = 0.0
    for worker in turn.state.workers.values():
        account = worker.account
        if worker.exit is not None and worker.exit.succeeded:
            continue
        if account is None or account.entered_at is None:
            return None
        if account.first_step_at is not None:
            latest = max(latest, account.first_step_at)
        elif turn.state.has_stepped or (account.rendezvous_begun_at and account.rendezvous_done_at is None):
            return None
        else:
            latest = max(latest, account.rendezvous_done_at or account.entered_at)
    return latest


def _close_recovered(turn: Turn, recovered_at: float) -> None:
    resumed_step = _resumed_step(turn)
    lost_steps = None
    if resumed_step is not None and turn.incident.best_step is not None:
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
    turn.set(incident=None)


def _resumed_step(turn: Turn) -> int | None:
    """Index of the first step of this generation; None when the job does not count its own steps."""
    accounts = [worker.account for worker in turn.state.workers.values() if worker.account is not None]
    firsts = [a.first_step for a in accounts if a.counts_own_steps and a.first_step is not None]
    return min(firsts, default=None)


def completed_step(turn: Turn) -> int | None:
    """Newest step that every rank of this generation has completed; None while some rank has completed none."""
    completed = [_completed(worker.account) for worker in turn.state.workers.values()]
    return None if None in completed else min((step for step in completed if step is not None), default=None)


def _completed(account: RankAccount | None) -> int | None:
    """A step is completed when its snapshot is, where snapshots are taken after each step; else when it is done.

    A rank whose snapshots stopped (memory refused) is more than one step ahead of its newest one.
    """
    if account is None or account.last_step is None:
        return None
    published = account.published_step
    return published if published is not None and published == account.last_step - 1 else account.last_step


def note_best_step(turn: Turn) -> None:
    accounts = [worker.account for worker in turn.state.workers.values()]
    if not turn.state.has_stepped and any(a is not None and a.last_step is not None for a in accounts):
        turn.set(has_stepped=True)
    completed = completed_step(turn)
    if completed is not None and (turn.state.best_step is None or completed > turn.state.best_step):
        turn.set(best_step=completed)


def _watch_rendezvous(turn: Turn) -> None:
    key = f"rendezvous:{turn.state.generation}"
    if key in turn.state.timers or turn.state.phase not in (Phase.FORMING, Phase.RUNNING):
        return
    accounts = [worker.account for worker in turn.state.workers.values()]
    if any(a and a.rendezvous_begun_at is not None and a.rendezvous_done_at is None for a in accounts):
        turn.start_timer(key, turn.policy.rendezvous_timeout_s, "every rank must be out of init_process_group by then")
