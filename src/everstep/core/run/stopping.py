"""How to stop the workers of a generation: with how much time, and after which step if there is no hurry."""

import signal as signals
from collections.abc import Iterable, Sequence

from everstep.core.restore.persistence import step_to_come
from everstep.core.restore.trust import is_corrupted
from everstep.core.state.phases import Phase
from everstep.core.state.turn import Turn
from everstep.model.actions import StopWorkers
from everstep.model.facts import RankAccount

LONGEST_S = 60.0
"""The longest stop. During a longer one the ranks would run unsupervised; repeating one step costs less."""

_TIMES, _MORE_S = 3.0, 5.0
"""How much longer than expected the next step may take."""

Accounts = Sequence[RankAccount | None]


def stops(
    turn: Turn,
    nodes: Iterable[str],
    why: str,
    *,
    grace_s: float | None = None,
    save_s: float | None = None,
    signal: int = signals.SIGTERM,
    after_step: int | None = None,
    after_s: float = 0.0,
) -> list[StopWorkers]:
    """For each of these nodes. `grace_s`, `save_s`: None: what fits the fault, or the end of the run."""
    accounts = [worker.account for worker in turn.state.workers.values()]
    grace_s = _grace_s(turn, accounts) if grace_s is None else grace_s
    save_s = _save_s(turn, accounts) if save_s is None else save_s
    return [
        StopWorkers(
            node=node,
            generation=turn.state.generation,
            grace_s=grace_s,
            signal=int(signal),
            save_s=save_s,
            after_step=after_step,
            after_s=after_s,
            why=why,
        )
        for node in nodes
    ]


def boundary(turn: Turn) -> tuple[int | None, float]:
    """The step, still to come for all ranks, that they end after, and how long they may take to it; None: they do not
    count steps, or keep no snapshots."""
    workers = turn.state.workers.values()
    accounts = [worker.account for worker in workers if worker.exit is None and worker.account is not None]
    are_known = all(account.counts_own_steps and account.published_step is not None for account in accounts)
    if not accounts or len(accounts) < len(workers) or not are_known:
        return None, 0.0
    step, wait_s = step_to_come(accounts, turn.at)
    limit_s = _TIMES * wait_s + _MORE_S
    return (step, limit_s) if limit_s <= LONGEST_S else (None, 0.0)


def hurry(turn: Turn, why: str) -> None:
    """End ranks now that were to end at a later step: something else has happened, and the others never get there
    without a rank that is gone."""
    state = turn.state
    if state.phase is Phase.STOPPING and state.growing:
        turn.do(*stops(turn, state.waiting, why, save_s=turn.policy.save_s))


def _grace_s(turn: Turn, accounts: Accounts) -> float:
    """Between SIGTERM and SIGKILL: torchrun's time where the run ends, or where a rank may save itself; less where a
    snapshot holds what every rank has, and least for those that hang."""
    state, policy = turn.state, turn.policy
    if state.ending is not None:
        return policy.shutdown_s
    if state.incident is not None and state.incident.facts.hang is not None:
        return min(policy.hang_grace_s, policy.stop_grace_s)
    is_saved = all(account is not None and account.published_step is not None for account in accounts)
    return policy.stop_grace_s if is_saved else max(policy.shutdown_s, policy.stop_grace_s)


def _save_s(turn: Turn, accounts: Accounts) -> float:
    """How long live ranks get to complete the snapshot of their last step; 0 if it is complete."""
    incident = turn.state.incident
    if is_corrupted(incident):
        return 0.0  # what they hold now must not be restored
    has_all = all(account is not None and account.published_step == account.last_step for account in accounts)
    is_hang = incident is not None and incident.facts.hang is not None
    return 0.0 if is_hang and has_all else turn.policy.save_s
