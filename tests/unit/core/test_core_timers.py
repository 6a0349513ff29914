"""Timers: each kind has a handler, a key that journals keep for ever, and a way back from the key."""

import pytest

from everstep.core.run.progress import on_late_timer
from everstep.core.state.frozenmap import FrozenMap
from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.core.state.schema import State, Worker
from everstep.core.state.timers import LASTING, MEANINGS, Timer, TimerKind, timer_of
from everstep.core.state.turn import Turn
from everstep.core.step import TIMER_HANDLERS
from everstep.model.facts import RankAccount
from everstep.model.spec import RunSpec

KEYS = {
    "node:a3", "standby:again", "backoff:4", "start:4", "rendezvous:4", "late:4", "recovered:4", "settle:4",
    "evidence:i2", "diagnosis:i2", "act:i2", "evict:i2", "exam:i2/1", "approval:i2", "update:check:v1", "update:due:v1",
    "persist:next", "persist:limit", "shrink:4", "least:4", "grow:4",
}  # fmt: skip
"""As they are in journals."""


def test_every_kind_has_a_handler_and_a_meaning() -> None:
    assert set(TIMER_HANDLERS) == set(MEANINGS) == set(TimerKind)


@pytest.mark.parametrize("key", sorted(KEYS))
def test_keys_of_journals_lead_to_their_timer_and_back(key: str) -> None:
    timer = timer_of(key)
    assert timer is not None
    assert timer.key == key


def test_every_kind_is_among_those_keys() -> None:
    assert {timer.kind for key in KEYS if (timer := timer_of(key)) is not None} == set(TimerKind)


@pytest.mark.parametrize("key", ["", ":", "settle4", "settler:4", "persist", "update:", "no such:4"])
def test_other_keys_lead_to_none(key: str) -> None:
    assert timer_of(key) is None


@pytest.mark.parametrize("kind", TimerKind)
@pytest.mark.parametrize("subject", ["", "7", "i2/1", "v1:x", "update:check"])
def test_a_subject_may_hold_anything(kind: TimerKind, subject: str) -> None:
    assert timer_of(Timer(kind, subject).key) == Timer(kind, subject)


def test_only_lasting_timers_outlive_a_generation() -> None:
    turn = Turn(State(), Policy(), at=0.0)
    for kind in TimerKind:
        turn.start_timer(Timer(kind, "1"), 5.0, "a test")
    turn.drop_timers(but=LASTING)
    assert set(turn.state.timers) == {Timer(kind, "1").key for kind in LASTING}


@pytest.mark.parametrize(("phase", "num_said"), [(Phase.FORMING, 1), (Phase.RUNNING, 1), (Phase.STOPPING, 0)])
def test_ranks_that_are_being_stopped_are_not_called_late(phase: Phase, num_said: int) -> None:
    """One may have ended at the signal while the other waits in the store, which hears none."""
    waits = RankAccount(rank=0, spawned_at=0.0, entered_at=1.0, rendezvous_begun_at=2.0)
    sleeps = RankAccount(rank=1, spawned_at=0.0, entered_at=1.0)
    workers = {each.rank: Worker(rank=each.rank, node="a", started=True, account=each) for each in (waits, sleeps)}
    spec = RunSpec(program="t.py", nproc_per_node=2)
    state = State(phase=phase, generation=4, spec=spec, workers=FrozenMap(workers))
    turn = Turn(state, Policy(), at=32.0)
    on_late_timer(turn, "4", 32.0)
    assert len(turn.actions) == num_said
