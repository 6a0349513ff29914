"""How many optimizer steps and collectives each loop step had: what replicas must have in common at every step.

A rank that leaves out an optimizer step under a condition on its data holds other parameters from then on, like a
machine that computed wrongly. The counts distinguish the two. Steps that are alike are one run of four numbers; a
second's runs go to the agent in one frame, and at once where a long run ends. Nothing waits; no torch is imported.
"""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from everstep.wire.frames import RankTells

SEND_EVERY_S = 1.0
LONG = 4
"""Steps that are alike; what differs then is worth a frame of its own."""

MAX_RUNS = 256
MAX_GROUPS = 8
"""Each group's number costs an exchange of the GIL: jobs with more of them count optimizer steps only."""


class Teller(Protocol):
    """The part of `worker.link.runtime.Runtime` that is used here."""

    num_optimizer_steps: int
    digest_every: int

    def tell(self, frame: "RankTells") -> None: ...


class StepCounts:
    """A hook on steps that are done."""

    def __init__(self, runtime: Teller, clock: Callable[[], float] = time.monotonic) -> None:
        self._runtime = runtime
        self._clock = clock
        self._before: tuple[int, int | None] | None = None  # optimizer steps and collectives so far
        self._runs: list[list[int]] = []
        self._sent_at = clock()
        self._length = 0  # of the newest run, over frames
        self._last: list[int] = []  # newest run that was sent

    def anew(self) -> "StepCounts":
        """For the next life of the process, which continues from a twin. `link.runtime` finds it by this name."""
        return StepCounts(self._runtime, self._clock)

    def __call__(self, step: int) -> None:
        now, before = (self._runtime.num_optimizer_steps, collectives()), self._before
        self._before = now
        if before is None:
            return  # work before the first step is start-up
        moved = -1 if now[1] is None or before[1] is None or now[1] < before[1] else now[1] - before[1]
        is_news = self._add(step, now[0] - before[0], moved)
        at = self._clock()
        # Before a digest of this step, on the same link, so that the counts are known when digests are compared.
        is_due = self._runtime.digest_every > 0 and (step + 1) % self._runtime.digest_every == 0
        if is_news or is_due or at - self._sent_at >= SEND_EVERY_S or len(self._runs) >= MAX_RUNS:
            self._sent_at = at
            runs, self._runs = self._runs, []
            self._last = runs[-1]
            self._runtime.tell({"counts": runs})

    def _add(self, step: int, optimizer: int, moved: int) -> bool:
        last = self._runs[-1] if self._runs else self._last
        is_alike = bool(last) and last[0] + last[1] == step and last[2:] == [optimizer, moved]
        if is_alike and self._runs:
            self._runs[-1][1] += 1
        else:
            self._runs.append([step, 1, optimizer, moved])
        was_long, self._length = self._length >= LONG, self._length + 1 if is_alike else 1
        return was_long and not is_alike


def collectives() -> int | None:
    """The sum of the groups' sequence numbers; None where there is no group that counts, or there are too many."""
    module: Any = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        groups = list(module._world.pg_map)
        if not groups or len(groups) > MAX_GROUPS:
            return None
        return sum(int(group._get_sequence_number_for_group()) for group in groups)
    except Exception:
        return None  # a backend that does not count
