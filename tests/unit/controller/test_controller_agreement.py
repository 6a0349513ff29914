"""When the watch says that all replicas agreed, and, above all, when it does not."""

import msgspec
import pytest
from one_node import running

from everstep.controller.detectors.agreement import INTERVAL_S, AgreementDetector
from everstep.controller.detectors.digests import DigestDetector
from everstep.controller.detectors.together import Detectors
from everstep.core.state.policy import Policy
from everstep.core.state.schema import Worker
from everstep.model.events import AnomalyFound, ReplicasAgreed
from everstep.model.facts import Exit, RankDigest
from everstep.model.observations import DigestsReported

ALL = (0, 1, 2, 3)
STATE = running(4)


class Job:
    def __init__(self) -> None:
        self.lost = False
        digests = DigestDetector(are_numbers_lost=lambda at: self.lost)
        self.watches = (digests, AgreementDetector(digests, are_numbers_lost=lambda at: self.lost))
        self.state = STATE
        self.now = 1000.0
        self.told: list[int] = []

    def report(self, step, rank, value="", replicas=ALL, missing="", generation=0, stride=0):
        values = {} if value is None else {"w": value or f"at {step}"}
        digest = RankDigest(rank=rank, step=step, values=values, replicas=replicas, missing=missing, stride=stride)
        event = DigestsReported(at=self.now, node="n0", generation=generation, digests=(digest,))
        _, agreed = (watch.take(event, self.state) for watch in self.watches)
        self.told += [each.step for each in agreed]
        assert all(each.generation == generation for each in agreed)

    def all(self, step, after_s=INTERVAL_S, generation=0, **odd):
        self.now += after_s
        for rank in ALL:
            self.report(step, rank, odd.get(f"r{rank}", ""), generation=generation)


def test_the_first_at_once_when_the_last_live_rank_has_told():
    job = Job()
    for rank in (0, 1, 2):
        job.report(10, rank)
    assert job.told == []
    job.report(10, 3)
    assert job.told == [10]


def test_not_more_often_than_is_worth_a_record_and_never_late():
    job = Job()
    for step in range(10, 110, 10):
        job.all(step, after_s=INTERVAL_S / 4)
    assert job.told == [10, 50, 90]


def test_again_at_once_in_another_generation():
    job = Job()
    job.all(10)
    job.all(20, after_s=0.1, generation=1)
    assert job.told == [10, 20]


@pytest.mark.parametrize("odd", [{"r1": "other"}, {"r1": None}, {"r0": "a", "r1": "b", "r2": "a", "r3": "b"}])
def test_never_where_somebody_differs_or_is_silent(odd):
    job = Job()
    job.all(10, **odd)
    assert job.told == []
    job.all(20)
    assert job.told == [20]


def test_never_of_a_digest_that_leaves_parameters_out():
    job = Job()
    job.now += 1
    for rank in ALL:
        job.report(10, rank, missing="a parameter on another device" if rank == 2 else "")
    assert job.told == []


def test_never_while_numbers_are_lost():
    job = Job()
    job.lost = True
    job.all(10)
    job.lost = False
    assert job.told == []
    job.all(20)
    assert job.told == [20]


def test_every_group_must_have_agreed():
    """Two pipeline stages with two replicas each: one stage alone says nothing of the other."""
    job = Job()
    for rank, replicas in ((0, (0, 1)), (1, (0, 1)), (2, (2, 3))):
        job.report(10, rank, value=f"stage {replicas[0]}", replicas=replicas)
    assert job.told == []
    job.report(10, 3, value="stage 2", replicas=(2, 3))
    assert job.told == [10]
    job.now += INTERVAL_S
    for rank, replicas in ((0, (0, 1)), (1, (0, 1)), (2, (2, 3)), (3, (2, 3))):
        job.report(20, rank, value="odd" if rank == 3 else f"stage {replicas[0]}", replicas=replicas)
    assert job.told == [10]


def test_a_rank_without_a_replica_was_compared_with_nobody():
    job = Job()
    for rank in (0, 1, 2):
        job.report(10, rank, replicas=(0, 1, 2))
    job.report(10, 3, value="alone", replicas=(3,))
    assert job.told == []


def test_groups_by_stride():
    job = Job()
    for rank in ALL:
        job.report(10, rank, value=f"stage {rank % 2}", replicas=(rank % 2, rank % 2 + 2), stride=2)
    assert job.told == [10]


def test_a_rank_that_has_ended_is_not_waited_for():
    job = Job()
    gone = Worker(rank=3, node="n0", exit=Exit(rank=3, at=1.0, code=0))
    job.state = msgspec.structs.replace(STATE, workers={**STATE.workers, 3: gone})
    for rank in (0, 1, 2):
        job.report(10, rank)
    assert job.told == [10]


def test_replicas_that_nobody_declared_are_trusted_once_they_are_learned():
    job = Job()
    for step in (10, 20, 30):
        job.now += INTERVAL_S
        for rank in ALL:
            job.report(step, rank, replicas=())
    assert job.told == [30], "equal twice, and changed in between, is what makes them replicas"


def test_the_same_number_again_is_another_step():
    """A program that counts anew: what was equal then says nothing now."""
    job = Job()
    for rank in (0, 1, 2):
        job.report(10, rank)
    job.report(10, 0, value="anew")
    job.report(10, 3)
    assert job.told == []


def test_what_differs_is_told_with_the_newest_agreement_also_if_that_was_not_told():
    watches = Detectors(Policy(digest_every=10))
    state, found = running(4), []
    for step in (0, 9, 19, 29, 39):
        for rank in ALL:
            value = "flipped" if (step, rank) == (39, 2) else f"at {step}"
            digest = RankDigest(rank=rank, step=step, values={"w": value}, replicas=ALL)
            event = DigestsReported(at=1000.0 + step / 100, node="n0", generation=0, digests=(digest,))
            found += watches.take(event, state)
    told = [each.step for each in found if isinstance(each, ReplicasAgreed)]
    (anomaly,) = [each for each in found if isinstance(each, AnomalyFound)]
    assert (told, anomaly.verdict.code, anomaly.agreed_step) == ([9], "ES-N04", 29)
