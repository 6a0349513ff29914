"""What a rank left out of a step is the program's doing, until its replicas are equal again; then machines count."""

import msgspec
import pytest
from one_node import running

from everstep.analyzer.exits import FaultFacts
from everstep.controller.detectors.counts import CountDetector
from everstep.controller.detectors.digests import DigestDetector
from everstep.core.state.schema import Incident
from everstep.model.events import AnomalyFound
from everstep.model.facts import RankCounts, RankDigest
from everstep.model.observations import DigestsReported

ALL = (0, 1, 2, 3)
INCIDENT = Incident(id="i1", generation=0, opened_at=1.0, facts=FaultFacts(at=1.0))


class Job:
    """Ranks that count and digest each step, as `Detectors` looks at them."""

    def __init__(self) -> None:
        self.counts = CountDetector()
        self.digests = DigestDetector(self.counts)
        self.state = running(4)
        self.generation = 0
        self.found: list[AnomalyFound] = []

    def step(
        self, step: int, *, idle: int | None = None, differs: int | None = None, unheard: int | None = None
    ) -> None:
        for rank in ALL:
            if rank != unheard:
                self.count(step, rank, 0 if rank == idle else 1)
            values = {"w": "other" if rank == differs else f"at {step}"}
            self._report(step, digests=(RankDigest(rank=rank, step=step, values=values, replicas=ALL),))

    def count(self, step: int, rank: int, optimizer: int) -> None:
        self._report(step, counts=(RankCounts(rank=rank, runs=((step, 1, optimizer, 2),)),))

    def _report(self, step: int, digests=(), counts=()) -> None:
        event = DigestsReported(at=float(step), node="n0", generation=self.generation, digests=digests, counts=counts)
        for watch in (self.counts, self.digests):
            self.found += watch.take(event, self.state)

    @property
    def seen(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(found.verdict.code, found.verdict.ranks) for found in self.found]


def test_what_was_left_out_is_told_once_and_no_machine_is_accused():
    job = Job()
    job.step(1)
    job.step(2, idle=2, differs=2)
    job.step(3, differs=2)
    assert job.seen == [("ES-N08", (2,))]
    assert job.found[0].verdict.blame == "user"


@pytest.mark.parametrize("is_busy", [False, True])
def test_after_a_restart_it_is_still_the_programs(is_busy):
    """Its snapshots hold what the program made of it, also when another incident hid it at first."""
    job = Job()
    job.step(1)
    job.state = msgspec.structs.replace(job.state, incident=INCIDENT if is_busy else None)
    job.step(2, idle=2, differs=2)
    job.state = msgspec.structs.replace(job.state, incident=None)
    job.generation = 1
    job.step(3, differs=2)
    job.step(4, differs=2)
    assert job.seen == [("ES-N08", (2,))]


@pytest.mark.parametrize("restarts", [0, 1])
def test_once_they_were_equal_again_a_machine_can_be_accused(restarts):
    job = Job()
    job.step(1)
    job.step(2, idle=2, differs=2)
    job.generation = restarts
    job.step(3)
    job.step(4, differs=1)
    assert job.seen == [("ES-N08", (2,)), ("ES-N04", (1,))]


def test_a_rank_that_leaves_something_out_again_is_told_again():
    job = Job()
    job.step(1)
    job.step(2, idle=2, differs=2)
    job.step(3)
    job.step(4, idle=2, differs=2)
    assert job.seen == [("ES-N08", (2,))] * 2


def test_while_counts_are_missing_no_machine_is_accused():
    """On a busy machine a frame comes late, or is lost: what that rank did is not known yet."""
    job = Job()
    job.step(1)
    job.step(2, differs=2, unheard=2)
    assert job.seen == []
    job.count(2, 2, 0)
    job.step(3, differs=2)
    assert job.seen == [("ES-N08", (2,))]


def test_counts_that_never_come_hide_no_broken_machine():
    job = Job()
    job.step(1)
    for step in range(2, 6):
        job.step(step, differs=2, unheard=2 if step == 2 else None)
    assert job.seen == [("ES-N04", (2,))]
