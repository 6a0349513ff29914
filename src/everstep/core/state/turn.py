"""One turn of the brain: a draft of the next state and the actions decided so far. Lives inside one `step` only.

What is derived from something else in the state (the tally of workers, the vacant slots) changes here, and with it.
"""

from collections.abc import Container, Iterable
from typing import Any, cast

import msgspec

from everstep.core.state.frozenmap import FrozenMap
from everstep.core.state.phases import Phase, is_legal
from everstep.core.state.policy import Policy
from everstep.core.state.schema import Incident, Member, State
from everstep.core.state.timers import Timer, TimerKind, timer_of
from everstep.core.state.workers import Tally, Worker
from everstep.model.actions import Action, SetTimer
from everstep.model.facts import RankAccount
from everstep.model.spec import RunSpec


class Turn:
    """One turn of the brain. `spec` and `incident` are the state's; only call what reads them once they exist.

    They are None before, although typed otherwise, and reading them then fails."""

    def __init__(self, state: State, policy: Policy, at: float) -> None:
        self.policy = policy
        self.at = at
        self.actions: list[Action] = []
        self._take(state)

    def set(self, **changes: Any) -> None:  # noqa: ANN401  (fields of State; msgspec checks the names)
        self._take(msgspec.structs.replace(self.state, **changes))

    def _take(self, state: State) -> None:
        self.state = state
        self.spec = cast("RunSpec", state.spec)
        self.incident = cast("Incident", state.incident)

    def enter(self, phase: Phase, *, is_reopened: bool = False, **changes: Any) -> None:  # noqa: ANN401
        """Go to this phase, with what else changes at that moment. The only way to change the phase.

        An edge that the table does not list is noted (`core.invariants` fails on it) and taken all the same: to stop
        here would leave the run in a phase that nothing leads out of.
        """
        before = self.state.phase
        if not is_legal(before, phase, is_reopened=is_reopened):
            self.set(unlisted=f"{before} to {phase}")
        self.set(phase=phase, **changes)

    def set_incident(self, **changes: Any) -> None:  # noqa: ANN401
        self.set(incident=msgspec.structs.replace(self.incident, **changes))

    def set_members(self, *members: Member) -> None:
        self.set(members=self.state.members.updated({member.node: member for member in members}))

    def set_workers(self, *workers: Worker) -> None:
        """Instead of those with the same ranks."""
        if not workers:
            return
        known = self.state.workers
        pairs = [(known[worker.rank], worker) for worker in workers]
        after = known.updated({worker.rank: worker for worker in workers})
        self.set(workers=after, tally=self.state.tally.changed(pairs))

    def set_accounts(self, node: str, accounts: Iterable[RankAccount]) -> None:
        """Set the accounts of this node's own ranks; others are ignored."""
        newest = {account.rank: account for account in accounts}
        own = self.own_workers(node, newest)
        self.set_workers(*(msgspec.structs.replace(worker, account=newest[worker.rank]) for worker in own))

    def empty_slots(self) -> None:
        """All of them."""
        num_slots = self.spec.num_slots
        self.set(slots=(None,) * num_slots, num_vacant=num_slots, first_vacant=0 if num_slots else None)

    def begin_workers(self, workers: Iterable[Worker]) -> None:
        """Those of a new generation; of none, when the processes of the last one are gone."""
        made = FrozenMap({worker.rank: worker for worker in workers})
        self.set(workers=made, tally=Tally.of(made.values()))

    def own_workers(self, node: str, ranks: Iterable[int]) -> list[Worker]:
        """Those of these ranks that are this node's in this generation: of others it can say nothing."""
        found = [self.state.workers.get(rank) for rank in ranks]
        return [worker for worker in found if worker is not None and worker.node == node]

    def give_slot(self, slot: int, node: str | None) -> None:
        slots, num_vacant, first = list(self.state.slots), self.state.num_vacant, self.state.first_vacant
        num_vacant += (node is None) - (slots[slot] is None)
        slots[slot] = node
        if node is None:
            first = slot if first is None else min(first, slot)
        elif first == slot:
            first = slots.index(None, slot) if num_vacant else None
        self.set(slots=tuple(slots), num_vacant=num_vacant, first_vacant=first)

    def do(self, *actions: Action) -> None:
        self.actions += actions

    def forget_unjudged(self, node: str | None, code: str) -> None:
        """Drop the waiting alerts that became a verdict, so that they are not judged a second time when the job runs
        again."""
        if self.state.unjudged:
            left = (seen for seen in self.state.unjudged if (seen.node, seen.alert.code) != (node, code))
            self.set(unjudged=tuple(left))

    def start_timer(self, timer: Timer, after_s: float, why: str) -> None:
        due_at = self.at + after_s
        self.set(timers=self.state.timers.updated({timer.key: due_at}))
        self.do(SetTimer(key=timer.key, due_at=due_at, why=why))

    def has_timer(self, timer: Timer) -> bool:
        return timer.key in self.state.timers

    def drop_timer(self, timer: Timer) -> None:
        """Forget it; if it is still set in the shell, it fires into nothing."""
        self.set(timers=self.state.timers.without(timer.key))

    def is_current(self, generation: str) -> bool:
        """Whether a timer of this generation is about the one that is there now."""
        return generation == str(self.state.generation)

    def drop_timers(self, but: Container[TimerKind] = ()) -> None:
        """All of them, but those of these kinds."""
        kept = {}
        for key, due_at in self.state.timers.items():
            timer = timer_of(key)
            if timer is not None and timer.kind in but:
                kept[key] = due_at
        self.set(timers=FrozenMap(kept))

    def workers_of(self, node: str) -> list[Worker]:
        """The workers of this generation on a node that holds a slot; none on any other node."""
        member = self.state.members.get(node)
        if member is None or member.slot is None:
            return []
        return self.own_workers(node, self.spec.ranks_of(member.slot))
