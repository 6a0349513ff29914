"""One turn of the brain: a draft of the next state and the actions decided so far. Lives inside one `step` only."""

from typing import Any

import msgspec

from everstep.core.policy import Policy
from everstep.core.state import Incident, State, Worker
from everstep.model.actions import Action, SetTimer
from everstep.model.spec import RunSpec


class Turn:
    def __init__(self, state: State, policy: Policy, at: float) -> None:
        self.state = state
        self.policy = policy
        self.at = at
        self.actions: list[Action] = []

    @property
    def spec(self) -> RunSpec:
        assert self.state.spec is not None, "no event is handled before RunStarted"
        return self.state.spec

    @property
    def incident(self) -> Incident:
        assert self.state.incident is not None, "only called while an incident is open"
        return self.state.incident

    def set(self, **changes: Any) -> None:  # noqa: ANN401  (fields of State; msgspec checks the names)
        self.state = msgspec.structs.replace(self.state, **changes)

    def set_incident(self, **changes: Any) -> None:  # noqa: ANN401
        self.set(incident=msgspec.structs.replace(self.incident, **changes))

    def set_worker(self, rank: int, **changes: Any) -> None:  # noqa: ANN401
        worker = msgspec.structs.replace(self.state.workers[rank], **changes)
        self.set(workers={**self.state.workers, rank: worker})

    def do(self, action: Action) -> None:
        self.actions.append(action)

    def start_timer(self, key: str, after_s: float, why: str) -> None:
        due_at = self.at + after_s
        self.set(timers={**self.state.timers, key: due_at})
        self.do(SetTimer(key=key, due_at=due_at, why=why))

    def drop_timers(self) -> None:
        """Forget all timers; those still set in the shell fire into nothing."""
        self.set(timers={})

    def workers_of(self, node: str) -> list[Worker]:
        return [worker for worker in self.state.workers.values() if worker.node == node]
