"""After which step a generation ends that nobody has to end at once: one that is still to come for all of its ranks.

Not any more when something else happens before: a rank that is gone lets the others never get there.
"""

from everstep.core.restore.persistence import step_to_come
from everstep.core.run import grace
from everstep.core.state.phases import Phase
from everstep.core.state.turn import Turn
from everstep.model.actions import StopWorkers

LONGEST_S = 60.0
"""A stop that takes longer is a stop in which nobody looks after the ranks; one step is then done twice."""

_TIMES, _MORE_S = 3.0, 5.0
"""What the step may take longer than it should."""


def to_come(turn: Turn) -> tuple[int | None, float]:
    """The step, and how long the ranks may take to it; None: they do not count steps, or keep no snapshots."""
    workers = turn.state.workers.values()
    accounts = [worker.account for worker in workers if worker.exit is None and worker.account is not None]
    are_known = all(account.counts_own_steps and account.published_step is not None for account in accounts)
    if not accounts or len(accounts) < len(workers) or not are_known:
        return None, 0.0
    step, wait_s = step_to_come(accounts, turn.at)
    limit_s = _TIMES * wait_s + _MORE_S
    return (step, limit_s) if limit_s <= LONGEST_S else (None, 0.0)


def no_longer(turn: Turn, why: str) -> None:
    """Ranks that go on to a step to come end now."""
    state = turn.state
    if state.phase is not Phase.STOPPING or not state.growing:
        return
    grace_s, save_s = grace.of(state, turn.policy), turn.policy.save_s
    for node in state.waiting:
        turn.do(StopWorkers(node=node, generation=state.generation, grace_s=grace_s, save_s=save_s, why=why))
