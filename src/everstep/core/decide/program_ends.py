"""Conclusions that are certain from how the program ended: its work is done, or it would end like this again.

A rank may end by a signal after its program has come to its last line: torch's threads may abort it. The work is done.
A job without snapshots would do all of it again after a restart, so the other ranks continue to their own ends, and the
run ends as under torchrun. One that keeps snapshots loses seconds, and is restarted as always.

A program that has not made a step yet has nothing that a restart could save: what ends it twice in the same way ends it
a third time, and its side effects come each time. Once it has made steps, more is worth a try, and only the same place
in the user's code counts.
"""

import re

from everstep.analyzer.rank_exit import signal_name
from everstep.core.run import failures
from everstep.core.state.schema import Failure
from everstep.core.state.turn import Turn
from everstep.core.state.workers import Worker
from everstep.model.facts import Exit
from everstep.model.verdict import Verdict


def is_spared(turn: Turn, worker: Worker) -> bool:
    """A rank that has failed, and that no other one is ended for."""
    return _ended_after_its_work(worker) and not turn.policy.exact_restarts and not _keeps_snapshots(turn)


def has_all_work_done(turn: Turn) -> bool:
    """Every rank has ended, with success or after its work."""
    return all(
        (worker.exit is not None and worker.exit.succeeded) or is_spared(turn, worker)
        for worker in turn.state.workers.values()
    )


def first_end(turn: Turn, verdict: Verdict) -> Exit | None:
    """The first of the ranks in the verdict that we did not end."""
    exits = turn.incident.exits
    ends = [exits[rank] for rank in verdict.ranks if rank in exits]
    return next((end for end in ends if not end.succeeded and not end.stopped_by_us), None)


def ended_at(turn: Turn, verdict: Verdict) -> str:
    """Where the program ended, or how: "train.py:212", "exit code 3", "SIGSEGV". Empty: not by itself."""
    if verdict.place:
        return verdict.place
    end = first_end(turn, verdict)
    if end is None:
        return ""
    place = end.error.place if end.error is not None else end.place
    if place:
        return place
    if end.signal is not None:
        return signal_name(end.signal)
    return f"exit code {end.code}" if end.code is not None else ""


def missed_launcher(end: Exit) -> str:
    """Suggest the launcher to write if the program wants the argument that deepspeed and torch.distributed.launch add
    to its own; empty if it does not."""
    found = re.search(r"arguments are required: .*(--local[-_]rank)", end.last_output)
    if found is None:
        return ""
    name = found[1]
    line = "deepspeed" if "_" in name else "python -m torch.distributed.launch"
    return f". It wants {name}, which torchrun does not give: write everstep run {line} ..., or read LOCAL_RANK"


def remember(turn: Turn, verdict: Verdict) -> None:
    """How often in a row the run has failed like this: at this place, or in this way."""
    place = ended_at(turn, verdict)
    failure = Failure(place=place, count=failures.times(turn, place), best_step=turn.state.best_step, at=turn.at)
    turn.set(failure=failure if place else None)


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
