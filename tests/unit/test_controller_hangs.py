"""The controller's hang watch: what it learns, when it judges, and when it holds its tongue."""

import msgspec
import pytest

from everstep.controller.hangs import AGAIN_S, HangWatch
from everstep.core.policy import Policy
from everstep.core.state import Member, Phase, Role, State, Worker
from everstep.model.events import HangSuspected, SignalsReported
from everstep.model.facts import Exit, Signals

STEP_S = 0.1
STATE = State(
    phase=Phase.RUNNING,
    generation=0,
    slots=("n0",),
    members={"n0": Member(node="n0", host="h", pid=1, role=Role.ACTIVE, slot=0)},
    workers={rank: Worker(rank=rank, node="n0") for rank in range(2)},
)


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

    def __init__(self, state: State = STATE, **changes: object) -> None:
        self.watch = HangWatch(Policy())
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
            suspected = self.watch.take(event, self.state)
            found += [suspected] if suspected else []
        return found


def test_a_job_that_stands_still_is_suspected_once_and_soon():
    job = Job()
    assert job.until(10) == []
    job.stands_at = 10.0
    (suspected,) = job.until(10 + AGAIN_S)
    assert 2.0 <= suspected.at - 10 <= 3.0
    assert (suspected.since, suspected.ranks, suspected.window_s) == (10.0, (0, 1), 2.0)
    assert "device" in suspected.silent[0]
    assert not job.watch.has_moved_on()
    assert job.until(job.now + 3), "still standing after a while: suspected again"


def test_it_has_moved_on_when_every_rank_has_stepped():
    job = Job()
    job.until(10)
    job.stands_at = 10.0
    assert job.until(13)
    job.stands_at = 14.0
    job.until(14)
    assert job.watch.has_moved_on()


@pytest.mark.parametrize(
    "changes",
    [
        {"looking": True},  # a stack is on its way
        {"paused": True},
        {"phase": "startup"},
        {"phase": "a phase of the future"},
        {"device_s": 0.0, "stack_s": None},  # it computes, and its stack cannot be seen
        {"device_s": 0.0, "stack_s": 0.5},  # it computes, and its stack moves
        {"has_snapshot": False},  # a false alarm would cost much: 30 s
    ],
    ids=str,
)
def test_what_keeps_it_from_judging(changes):
    job = Job(**changes)
    job.until(10)
    job.stands_at = 10.0
    assert job.until(20) == []


def test_a_loop_is_a_hang_although_the_processor_is_busy():
    job = Job()
    job.until(10)
    job.stands_at = 10.0
    job.changes[0] = {"device_s": 0.0, "stack_s": 5.0, "communication_s": None}
    assert job.until(14)


def test_what_comes_again_at_the_same_step_is_how_long_it_takes_here():
    """Never restart for ever: a mistake about a rank that works costs one restart."""
    job = Job()
    job.until(10)
    job.stands_at = 10.0
    job.changes[0] = {"device_s": 0.0, "stack_s": 5.0}
    assert job.until(14)
    later = Job(msgspec.structs.replace(STATE, generation=1), **job.changes[0])
    later.watch, later.now, later.stands_at, later.generation = job.watch, 14.0, 10.0, 1
    assert later.until(40) == []
    later.stands_at = 45.0
    later.until(45)
    assert later.until(50), "another step is another matter"


def test_without_history_it_waits_for_minutes():
    job = Job()
    job.stands_at = 0.5
    assert job.until(100) == []


def test_a_rank_that_is_not_seen_is_not_judged_and_one_that_has_ended_is_not_missed():
    job = Job()
    job.until(10)
    job.stands_at = 10.0
    del job.changes[1]
    assert job.until(20) == []
    ended = Worker(rank=1, node="n0", exit=Exit(rank=1, at=15.0, code=0))
    job.state = msgspec.structs.replace(STATE, workers={0: STATE.workers[0], 1: ended})
    assert job.until(21)


@pytest.mark.parametrize("phase", [Phase.FORMING, Phase.SETTLING, Phase.STOPPING])
def test_only_a_running_generation_is_judged(phase):
    job = Job()
    job.until(10)
    job.stands_at = 10.0
    job.state = msgspec.structs.replace(STATE, phase=phase)
    assert job.until(20) == []


def test_signals_of_another_generation_or_node_say_nothing():
    watch = HangWatch(Policy())
    for node, generation in (("n0", 1), ("n7", 0)):
        event = SignalsReported(at=1.0, node=node, generation=generation, signals=(signals(0, 1.0, 1.0),))
        assert watch.take(event, STATE) is None
    assert not watch._newest


def test_the_window_follows_the_jobs_own_steps():
    job = Job()
    for rank in job.changes:
        job.changes[rank] = {}
    for number in range(12):  # two-second steps, each seen at its end
        at = 2.0 * number
        seen = tuple(signals(rank, at, at, last_step=number, last_step_at=at) for rank in range(2))
        assert job.watch.take(SignalsReported(at=at, node="n0", generation=0, signals=seen), STATE) is None
    stands = tuple(signals(rank, 29.0, 22.0, last_step=11, last_step_at=22.0) for rank in range(2))
    assert job.watch.take(SignalsReported(at=29.0, node="n0", generation=0, signals=stands), STATE) is None
    stands = tuple(signals(rank, 30.5, 22.0, last_step=11, last_step_at=22.0) for rank in range(2))
    assert job.watch.take(SignalsReported(at=30.5, node="n0", generation=0, signals=stands), STATE) is not None
