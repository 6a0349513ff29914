"""What each loop step had, counted by the ranks and compared at every step: who left something out, and who did not."""

import msgspec
import pytest
from one_node import running

from everstep.agent.watching.observing import _run
from everstep.analyzer.numbers.counts import compare_counts
from everstep.analyzer.observations.records import ParallelGroup
from everstep.controller.detectors.together import Detectors
from everstep.core.state.policy import Policy
from everstep.model.facts import RankCounts, RankDigest
from everstep.model.observations import DigestsReported
from everstep.worker.digests import counts as counting
from everstep.worker.digests.counts import StepCounts

GROUP = ParallelGroup(name="replicas", ranks=(0, 1, 2, 3))
STATE = running(4)
ALL = (0, 1, 2, 3)


class Runtime:
    def __init__(self) -> None:
        self.num_optimizer_steps = 0
        self.digest_every = 50
        self.told: list[list[int]] = []

    def tell(self, frame) -> None:
        self.told += frame["counts"]


class Rank:
    """Counts steps with a clock of its own."""

    def __init__(self, monkeypatch) -> None:
        self.runtime, self.now, self.collectives = Runtime(), 0.0, 0
        monkeypatch.setattr(counting, "collectives", lambda: self.collectives)
        self.hook = StepCounts(self.runtime, lambda: self.now)

    def step(self, number, optimizer=1, collectives=3, took_s=0.1) -> None:
        self.runtime.num_optimizer_steps += optimizer
        self.collectives += collectives
        self.now += took_s
        self.hook(number)


def test_steps_that_are_alike_are_one_run_a_second(monkeypatch):
    rank = Rank(monkeypatch)
    for number in range(24):
        rank.step(number)
    assert len(rank.runtime.told) == 2
    assert [run[2:] for run in rank.runtime.told] == [[1, 3], [1, 3]]
    assert rank.runtime.told[1][0] == sum(rank.runtime.told[0][:2])


def test_a_step_that_differs_is_told_at_once(monkeypatch):
    rank = Rank(monkeypatch)
    for number in range(10):
        rank.step(number, optimizer=int(number != 8), took_s=0.001)
    assert rank.runtime.told == [[1, 7, 1, 3], [8, 1, 0, 3]]


def test_counts_are_there_before_the_digest_of_their_step(monkeypatch):
    rank = Rank(monkeypatch)
    for number in range(46, 50):
        rank.step(number, took_s=0.001)
    assert rank.runtime.told == [[47, 3, 1, 3]]


def test_what_is_not_counted_is_unknown(monkeypatch):
    rank = Rank(monkeypatch)
    monkeypatch.setattr(counting, "collectives", lambda: None)
    rank.step(0)
    rank.step(1, took_s=2.0)
    assert rank.runtime.told == [[1, 1, 1, -1]]


@pytest.mark.parametrize(
    ("counts", "ranks"),
    [
        ([(1, 3), (1, 3), (1, 3), (1, 3)], ()),
        ([(1, 3), (1, 3), (0, 3), (1, 3)], (2,)),
        ([(1, 3), (2, 3), (1, 3), (1, 3)], (1,)),
        ([(0, 3), (0, 3), (1, 3), (1, 3)], (0, 1)),  # no majority: those that did less
        ([(0, 3), (0, 3), (0, 3), (1, 3)], (3,)),
        ([(1, 3), (1, 3), (1, 6), (1, 3)], (2,)),  # collectives of two steps, one update
        ([(1, 3), (1, 3), (1, 4), (1, 3)], ()),  # a group of its own
        ([(1, 3), (1, -1), (1, 6), (1, 3)], ()),
    ],
)
def test_who_left_something_out(counts, ranks):
    found = compare_counts(dict(enumerate(counts)), GROUP, 60, 0.0)
    assert (found.ranks if found else ()) == ranks
    if found:
        assert "step 60" in found.sentence


class Job:
    def __init__(self) -> None:
        self.detectors = Detectors(Policy())
        self.found = []
        self.digests(0)

    def digests(self, step, odd=None) -> None:
        for rank in ALL:
            digest = RankDigest(rank=rank, step=step, values={"w": "odd" if rank == odd else str(step)}, replicas=ALL)
            self.take(DigestsReported(at=float(step), node="n0", generation=0, digests=(digest,)))

    def counts(self, first, number, **odd) -> None:
        for rank in ALL:
            runs = odd.get(f"r{rank}", ((first, number, 1, 3),))
            counts = (RankCounts(rank=rank, runs=runs),)
            self.take(DigestsReported(at=float(first), node="n0", generation=0, digests=(), counts=counts))

    def take(self, event) -> None:
        self.found += self.detectors.take(event, STATE)

    @property
    def verdicts(self):
        return [f.verdict for f in self.found if hasattr(f, "verdict")]


def test_a_rank_that_left_out_an_update_is_told_at_that_step_and_no_machine_later():
    job = Job()
    job.counts(1, 59)
    job.counts(60, 10, r2=((60, 1, 0, 3), (61, 9, 1, 3)))
    (verdict,) = job.verdicts
    assert (verdict.code, verdict.ranks, verdict.blame) == ("ES-N08", (2,), "user")
    assert "no optimizer step at step 60" in verdict.sentence
    job.digests(99, odd=2)
    assert len(job.verdicts) == 1


def test_equal_counts_and_other_results_accuse_the_machine():
    job = Job()
    job.counts(1, 99)  # each rank tells its counts before the digest of the same step
    job.digests(99, odd=2)
    assert [(v.code, v.ranks) for v in job.verdicts] == [("ES-N04", (2,))]


def test_ranks_that_were_never_equal_may_do_as_they_like():
    detectors = Detectors(Policy())
    found = []
    for rank in ALL:
        counts = (RankCounts(rank=rank, runs=((1, 50, rank, 3),)),)
        found += detectors.take(DigestsReported(at=1.0, node="n0", generation=0, digests=(), counts=counts), STATE)
    assert found == []


def test_a_frame_that_was_lost_accuses_nobody():
    job = Job()
    job.counts(1, 59, r1=())
    job.counts(60, 10, r2=((60, 1, 0, 3), (61, 9, 1, 3)), r1=((65, 5, 1, 3),))
    assert job.verdicts == []


def test_a_node_speaks_for_its_own_ranks_and_no_number_costs_more_than_memory_for_some_steps():
    job = Job()
    counts = (RankCounts(rank=2, runs=((0, 1 << 60, 0, 3),) * 500),)
    job.take(DigestsReported(at=1.0, node="n0", generation=0, digests=(), counts=counts))
    lying = msgspec.structs.replace(STATE.workers[1], node="n9")
    other = msgspec.structs.replace(STATE, workers={**STATE.workers, 1: lying})
    told = (RankCounts(rank=1, runs=((0, 50, 0, 3),)),)
    found = job.detectors.take(DigestsReported(at=1.0, node="n0", generation=0, digests=(), counts=told), other)
    assert found == []


@pytest.mark.parametrize(
    "raw", [[1, 2, 3], [0, 0, 1, 1], [-1, 1, 1, 1], [0, 1, -1, 1], [0, 1, 1, -2], ["x", 1, 1, 1], [0, 1 << 40, 1, 1]]
)
def test_frames_that_are_none_are_refused(raw):
    with pytest.raises(ValueError):
        _run(raw)
