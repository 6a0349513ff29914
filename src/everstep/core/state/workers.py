"""The ranks of the current generation, each by itself, and how many of them are how far.

The tally is kept beside `State.workers`, so that no rule asks all of them about it. Changed in one place,
`Turn.set_workers`; `check` compares it with the workers themselves.
"""

from collections.abc import Iterable

import msgspec

from everstep.model.facts import Exit, RankAccount


class Worker(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One rank, as far as it is known."""

    rank: int
    node: str
    started: bool = False  # the agent confirmed the process
    account: RankAccount | None = None
    exit: Exit | None = None


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of ranks. Those that ended with success have nothing to enter, to wait for or to step any more."""

    unstarted: int = 0  # their agent has not confirmed the process
    alive: int = 0  # no exit is known
    unsuccessful: int = 0  # alive, or ended otherwise
    unentered: int = 0  # not in the user's program, as far as is known
    unstepped: int = 0  # no first step
    blocked: int = 0  # ... and in init_process_group
    in_rendezvous: int = 0  # in init_process_group, whether they made steps before or not
    stepped: int = 0  # have reported a step
    incomplete: int = 0  # have not reported a completed step
    completed: dict[int, int] = {}  # newest completed step -> number of ranks; a few entries, as ranks go together

    @classmethod
    def of(cls, workers: Iterable[Worker]) -> "Tally":
        return cls().changed((None, worker) for worker in workers)

    def changed(self, pairs: Iterable[tuple[Worker | None, Worker]]) -> "Tally":
        """With each worker on the right instead of the one on the left."""
        counts = [getattr(self, name) for name in _COUNTS]
        completed = dict(self.completed)
        for before, after in pairs:
            old, new = _NOTHING if before is None else _marks(before), _marks(after)
            if old != new:
                counts = [count + more - less for count, more, less in zip(counts, new, old, strict=True)]
            if before is not None:
                _count(completed, completed_of(before.account), -1)
            _count(completed, completed_of(after.account), 1)
        return Tally(**dict(zip(_COUNTS, counts, strict=True)), completed=completed)

    @property
    def completed_step(self) -> int | None:
        """Newest step that every rank of this generation has completed; None while some rank has completed none."""
        return None if self.incomplete else min(self.completed, default=None)

    def is_through(self, *, has_stepped: bool) -> bool:
        """Every rank is where it can train (or trains).

        A job that reported steps before is through at its first new step. One that never did is through when it has
        entered the program and left rendezvous: nothing more can be seen of it.
        """
        return not self.unentered and not (self.unstepped if has_stepped else self.blocked)


_COUNTS = tuple(name for name in Tally.__struct_fields__ if name != "completed")
_NOTHING = (0,) * len(_COUNTS)


def completed_of(account: RankAccount | None) -> int | None:
    """A step is completed when its snapshot is, where snapshots are taken after each step; else when it is done.

    A rank whose snapshots stopped (memory refused) is more than one step ahead of its newest one.
    """
    if account is None or account.last_step is None:
        return None
    published = account.published_step
    return published if published is not None and published == account.last_step - 1 else account.last_step


def _marks(worker: Worker) -> tuple[int, ...]:
    """Return what this worker adds to each count."""
    account, exit_ = worker.account, worker.exit
    is_left = exit_ is None or not exit_.succeeded
    entered = begun = done = first_step_at = last_step = None
    if account is not None:
        entered, begun, done = account.entered_at, account.rendezvous_begun_at, account.rendezvous_done_at
        first_step_at, last_step = account.first_step_at, account.last_step
    has_entered = entered is not None
    return (
        not worker.started,
        exit_ is None,
        is_left,
        is_left and not has_entered,
        is_left and first_step_at is None,
        is_left and has_entered and first_step_at is None and bool(begun) and done is None,
        begun is not None and done is None,
        last_step is not None,
        completed_of(account) is None,
    )


def _count(completed: dict[int, int], step: int | None, more: int) -> None:
    if step is None:
        return
    number = completed.get(step, 0) + more
    if number:
        completed[step] = number
    else:
        del completed[step]
