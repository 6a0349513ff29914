"""Many reports of progress in one go, where each only moves its ranks a step forward.

`step` gives each report a turn of its own: 70 microseconds, which is nothing for one, and a second for those of 12,500
nodes that are put on record together before a decision. Most of them lead to nothing and change two things, the
accounts and the tally; here these are changed once for all. The result is what `step` would have made of them one after
the other (tests/property hold that), so a journal is replayed either way.
"""

from collections.abc import Sequence

import msgspec

from everstep.core.state.phases import Phase
from everstep.core.state.schema import State
from everstep.core.state.timers import Timer, TimerKind
from everstep.core.state.workers import Worker, completed_of
from everstep.model.events import ProgressReported
from everstep.model.facts import RankAccount
from everstep.model.versions import OPEN


def stride(state: State, reports: Sequence[ProgressReported]) -> tuple[State, int]:
    """The state after the first of these reports, and how many these are: up to the first that needs a turn of its own,
    so possibly none. None of them leads to an action."""
    if not _is_calm(state):
        return state, 0
    draft = _Draft(state)
    number = 0
    while number < len(reports) and draft.take(reports[number]):
        number += 1
    return (draft.state(), number) if number else (state, 0)


def _is_calm(state: State) -> bool:
    """Whether nothing but the ranks themselves is under way: see `step`, and what it asks after every event."""
    if state.phase is not Phase.RUNNING or state.incident is not None or not state.has_stepped:
        return False
    is_watched = (
        not state.tally.in_rendezvous or Timer.of_generation(TimerKind.RENDEZVOUS, state.generation).key in state.timers
    )
    is_quiet = not state.unjudged and not state.deferred
    return is_watched and is_quiet and all(candidate.stage not in OPEN for candidate in state.candidates)


class _Draft:
    """The workers and the tally while reports are taken in."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known = state.workers
        self._changed: dict[int, Worker] = {}
        self._completed = dict(state.tally.completed)
        self._is_complete = not state.tally.incomplete
        self._best = state.best_step
        self._is_noted = False  # what was complete before the first report

    def state(self) -> State:
        return msgspec.structs.replace(
            self._state,
            workers=self._known.updated(self._changed),
            tally=msgspec.structs.replace(self._state.tally, completed=self._completed),
            best_step=self._best,
        )

    def take(self, report: ProgressReported) -> bool:
        """Apply the report. False: it needs a turn, and nothing is changed."""
        state, changed = self._state, self._changed
        if report.generation != state.generation or not state.is_active(report.node):
            return False
        pairs: list[tuple[Worker, RankAccount]] = []
        for account in report.accounts:
            worker = changed.get(account.rank) or self._known.get(account.rank)
            if worker is None:
                continue
            if worker.node != report.node or not _is_only_further(worker.account, account):
                return False
            pairs.append((worker, account))
        if len({worker.rank for worker, _ in pairs}) < len(pairs):
            return False  # a rank twice: handle the report in full
        is_last_gone, self._is_noted = not self._is_noted, True
        for worker, account in pairs:
            changed[worker.rank] = Worker(
                rank=worker.rank, node=worker.node, started=worker.started, account=account, exit=worker.exit
            )
            is_last_gone |= self._move(completed_of(worker.account), completed_of(account))
        if is_last_gone:
            self._note_best()
        return True

    def _move(self, before: int | None, after: int | None) -> bool:
        """One rank from a completed step to another; whether it was the last one there."""
        assert before is not None, "both have reported a step"
        assert after is not None, "both have reported a step"
        if before == after:
            return False
        completed = self._completed
        completed[after] = completed.get(after, 0) + 1
        completed[before] -= 1
        if completed[before]:
            return False
        del completed[before]
        return True

    def _note_best(self) -> None:
        """Update the newest step that all have completed. It can only grow when no rank is left at the oldest."""
        if self._is_complete and self._completed:
            newest = min(self._completed)
            if self._best is None or newest > self._best:
                self._best = newest


def _is_only_further(before: RankAccount | None, after: RankAccount) -> bool:
    """Nothing that the tally counts has changed but the steps: see `workers`."""
    return (
        before is not None
        and before.last_step is not None
        and after.last_step is not None
        and before.entered_at == after.entered_at
        and before.rendezvous_begun_at == after.rendezvous_begun_at
        and before.rendezvous_done_at == after.rendezvous_done_at
        and before.first_step_at == after.first_step_at
    )
