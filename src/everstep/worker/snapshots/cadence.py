"""After which steps a snapshot is copied: after each, or, where optimizers wait for copies, after every k-th.

All ranks must keep the same steps, or after a fault there is none that all have. So k is agreed: a rank that waits too
long proposes one in the job's own store, to begin at a step some seconds ahead, and every rank looks there now and
then, on a thread of its own. The first proposal counts. Where no store can be found, or it fails, k stays what it is.
Called by `worker.snapshots.snapshots`; the training thread never waits for the store.

Steps are numbered here as they are completed by this process, from 0: indices of the program's own may leave some out,
and all ranks begin after the same one.

Powers of two, so that the steps of a slower cadence are among those of a faster one.
"""

import atexit
import collections
import os
import statistics
import sys
import threading
from typing import Any, Protocol

from everstep.worker.process.naming import name_thread

STALL_SHARE = 0.01
"""Share of a step that may be spent waiting. More is felt; less would give up steps that cost nothing."""

CALM_SHARE = 0.004
"""Below this at twice the pace, the pace is doubled: far enough from STALL_SHARE not to swing."""

MAX_EVERY = 64
"""Steps that are lost at most when ranks cannot complete their last one before they end."""

NUM_WAITS = 8
"""Waits of which the median counts: a busy moment is no reason. Copies into memory that is new are left out before."""

NUM_FIRST = 8

LOOK_EVERY_S = 2.0
AHEAD_S = 10.0
"""From a proposal until it counts: several looks, so that a rank that is held up for a while has seen it as well."""

AGAIN_S = 2 * AHEAD_S
"""Between two proposals of a rank: the first one must have had its effect."""

CALM_S = 60.0
"""From a change of pace until a faster one is tried; doubled each time that the faster one had to be taken back."""

_END_LIMIT_S = 0.5


class Agreement(Protocol):
    """How ranks come to the same pace."""

    why: str
    """The exchange has failed because of this: no decision will come any more."""

    def look(self) -> tuple[int, int] | None:
        """The newest decision: every, from which step on."""
        ...

    def propose(self, every: int, from_step: int) -> None: ...


class Cadence:
    """The cadence of one rank. `agreement` is None for a job of one rank: it decides alone."""

    def __init__(self, agreement: "Agreement | None", *, may_relax: bool) -> None:
        """`may_relax`: this rank proposes a faster pace when its own waits allow it; one rank is enough for that."""
        self.every = 1
        self.share: float | None = None
        """Share of a step that optimizers waited at the last pace, as far as this rank has measured it."""
        self._agreement = agreement
        self._may_relax = may_relax
        self._waits: collections.deque[float] = collections.deque(maxlen=NUM_WAITS)
        self._num_first = NUM_FIRST
        self._step_s: float | None = None
        self._done_at: float | None = None
        self._proposed_at = self._changed_at = float("-inf")
        self._calm_s = CALM_S
        self._has_relaxed = False
        self._next: tuple[int, int] | None = None

    def is_due(self, step: int) -> bool:
        """Whether the state after this step is copied."""
        if self._agreement is not None and (decided := self._agreement.look()) is not None:
            self._next = decided
        if self._next is not None and step >= self._next[1]:
            self._take_pace(self._next[0], self._done_at or 0.0)
            self._next = None
        return (step + 1) % self.every == 0

    @property
    def why(self) -> str:
        """Not empty: the pace cannot be agreed upon any more, and stays what it is."""
        return self._agreement.why if self._agreement is not None else ""

    def step_done(self, now: float) -> None:
        """A step is done, at this time (monotonic)."""
        if self._done_at is not None:
            took = now - self._done_at
            self._step_s = took if self._step_s is None else self._step_s + 0.2 * (took - self._step_s)
        self._done_at = now

    def waited(self, seconds: float, step: int, now: float) -> None:
        """An optimizer waited so long for the copy of `step`."""
        if self._num_first > 0:
            self._num_first -= 1
            return
        if not self._step_s:
            return
        self._waits.append(seconds / self._step_s)
        wish = self._wish()
        if wish == self.every or self._next is not None or now - self._proposed_at < AGAIN_S:
            return
        if wish < self.every and not (self._may_relax and now - self._changed_at >= self._calm_s):
            return
        self._proposed_at = now
        if self._agreement is None:
            self._take_pace(wish, now)
        else:
            self._agreement.propose(wish, step + 2 + int(AHEAD_S / self._step_s))

    def _wish(self) -> int:
        if len(self._waits) < NUM_WAITS:
            return self.every
        share = statistics.median(self._waits)
        wish = self.every
        while wish < MAX_EVERY and share / wish > STALL_SHARE:
            wish *= 2
        if wish == self.every and wish > 1 and share / (wish // 2) < CALM_SHARE:
            wish //= 2
        return wish

    def _take_pace(self, every: int, now: float) -> None:
        every = max(1, min(every, MAX_EVERY))
        if every > self.every and self._has_relaxed:
            self._calm_s *= 2
        self._has_relaxed = every < self.every
        self.share = statistics.median(self._waits) / self.every if self._waits else None
        self.every = every
        self._changed_at = now
        self._waits.clear()


class StoreAgreement:
    """Decisions in the store of the job's default process group, one key each, the first writer's value counts."""

    def __init__(self) -> None:
        self.why = ""
        self._decided: tuple[int, int] | None = None
        self._proposal: tuple[int, int] | None = None
        self._number = 0
        self._wake = threading.Event()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="everstep-cadence", daemon=True)
        self._thread.start()
        pid = os.getpid()
        atexit.register(lambda: self._end() if os.getpid() == pid else None)

    def look(self) -> tuple[int, int] | None:
        decided, self._decided = self._decided, None
        return decided

    def propose(self, every: int, from_step: int) -> None:
        self._proposal = (every, from_step)
        self._wake.set()

    def _end(self) -> None:
        """In torch while the interpreter is taken down, the thread would abort the process: it ends before."""
        self._is_ending = True
        self._wake.set()
        self._thread.join(_END_LIMIT_S)

    def _run(self) -> None:
        name_thread("everstep-cadence")
        while not self._is_ending:
            self._wake.wait(LOOK_EVERY_S)
            self._wake.clear()
            if self._is_ending:
                return
            try:
                self._exchange()
            except Exception as error:  # no group any more, or a store that is gone: the pace stays what it is
                self.why = f"{type(error).__name__}: {error}"
                return

    def _exchange(self) -> None:
        module: Any = sys.modules.get("torch.distributed.distributed_c10d")
        if module is None or not module.is_initialized():
            return
        store = module._get_default_store()  # not kept: a program that gives up its group must get rid of it
        proposal, self._proposal = self._proposal, None
        key = f"everstep/cadence/{self._number}"
        if proposal is not None:
            value = store.compare_set(key, "", f"{proposal[0]} {proposal[1]}")
        elif store.check([key]):
            value = store.get(key)
        else:
            return
        every, from_step = value.decode().split()
        self._number += 1
        self._decided = (int(every), int(from_step))


def begin(world_size: int, rank: int) -> Cadence:
    """The cadence of this process."""
    return Cadence(StoreAgreement() if world_size > 1 else None, may_relax=rank == 0)
