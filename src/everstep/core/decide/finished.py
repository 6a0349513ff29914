"""Ranks whose process a signal ended after their program had come to its last line: torch's threads may abort it.

The work is done. A job without snapshots would do all of it again after a restart, so the other ranks go on to their
own ends, and the run ends as under torchrun. One that keeps snapshots loses seconds, and is restarted as always.
"""

from everstep.core.decide import allowance
from everstep.core.state.turn import Turn
from everstep.core.state.worker import Worker


def is_spared(turn: Turn, worker: Worker) -> bool:
    """A rank that has failed, and that no other one is ended for."""
    return _ended_after_its_work(worker) and not allowance.is_users_word(turn) and not _keeps_snapshots(turn)


def has_all_work_done(turn: Turn) -> bool:
    """Every rank has ended, with success or after its work."""
    ended = [worker for worker in turn.state.workers.values() if worker.exit is not None]
    return len(ended) == len(turn.state.workers) and all(
        (worker.exit is not None and worker.exit.succeeded) or is_spared(turn, worker) for worker in ended
    )


def _ended_after_its_work(worker: Worker) -> bool:
    account, exit_ = worker.account, worker.exit
    if account is None or account.finished_at is None or exit_ is None:
        return False
    return exit_.signal is not None and exit_.error is None and not exit_.stopped_by_us


def _keeps_snapshots(turn: Turn) -> bool:
    if turn.state.formation is not None and turn.state.formation.resume_step is not None:
        return True
    accounts = [worker.account for worker in turn.state.workers.values()]
    return any(account is not None and account.published_step is not None for account in accounts)
