"""A job of two ranks as the hang detector sees it, which can stand still."""

import msgspec
from one_node import running

from everstep.controller.detectors.hangs import HangDetector
from everstep.core.state.policy import Policy
from everstep.core.state.schema import State
from everstep.model.events import HangSuspected
from everstep.model.facts import Signals
from everstep.model.observations import SignalsReported

STEP_S = 0.1
OUTSIDE = {"waits_on": "outside", "waits_for": "waits for a socket"}
STATE = running(2)


def signals(rank: int, now: float, last_at: float, **changes: object) -> Signals:
    quiet = now - last_at
    seen = Signals(
        rank=rank,
        phase="train",
        log_s=quiet,
        device_s=quiet,
        communication_s=quiet,
        has_snapshot=True,
        last_step=round(last_at / STEP_S),
        last_step_at=last_at,
    )
    return msgspec.structs.replace(seen, **changes)


class Job:
    """Two ranks, seen every half second; they do a step every 0.1 s until `stands_at`."""

    def __init__(self, state: State = STATE, policy: Policy | None = None, **changes: object) -> None:
        self.watch = HangDetector(policy or Policy())
        self.state = state
        self.now = 0.0
        self.generation = 0
        self.stands_at = 1e9
        self.changes = {0: dict(changes), 1: {}}

    def until(self, end: float) -> list[HangSuspected]:
        found = []
        while self.now < end:
            self.now += 0.5
            last_at = min(self.now, self.stands_at)
            seen = tuple(signals(rank, self.now, last_at, **self.changes[rank]) for rank in self.changes)
            event = SignalsReported(at=self.now, node="n0", generation=self.generation, signals=seen)
            suspected = next(iter(self.watch.take(event, self.state)), None)
            found += [suspected] if suspected else []
        return found
