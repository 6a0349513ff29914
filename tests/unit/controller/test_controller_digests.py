"""The controller's watch over digests: declared replicas, learned ones, and what is never reported."""

import msgspec
from one_node import running

from everstep.analyzer.exits import FaultFacts
from everstep.controller.detectors.digests import MAX_STEPS, DigestDetector
from everstep.core.state.schema import Incident, Worker
from everstep.model.events import AnomalyFound
from everstep.model.facts import Exit, RankDigest
from everstep.model.observations import DigestsReported

STATE = running(4)
ALL = (0, 1, 2, 3)
INCIDENT = Incident(id="i1", generation=0, opened_at=1.0, facts=FaultFacts(at=1.0))


class Job:
    def __init__(self, replicas: tuple[int, ...] = ALL) -> None:
        self.watch = DigestDetector()
        self.replicas = replicas
        self.state = STATE
        self.found: list[AnomalyFound] = []

    def report(self, step: int, rank: int, value: str = "", generation: int = 0) -> None:
        digest = RankDigest(rank=rank, step=step, values={"w": value or f"at {step}", "b": "b"}, replicas=self.replicas)
        event = DigestsReported(at=float(step), node="n0", generation=generation, digests=(digest,))
        self.found += self.watch.take(event, self.state)

    def steps(self, *steps: int, generation: int = 0, **odd: str) -> None:
        for step in steps:
            for rank in ALL:
                self.report(step, rank, odd.get(f"r{rank}", ""), generation)

    @property
    def seen(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(found.verdict.code, found.verdict.ranks) for found in self.found]


def test_the_replica_that_differs_is_named_once():
    job = Job()
    job.steps(0, 49)
    job.steps(99, 149, r2="other")
    assert job.seen == [("ES-N04", (2,))]
    verdict = job.found[0].verdict
    assert (verdict.group, verdict.group_ranks, verdict.blame) == ("data-parallel replicas", ALL, "machine")
    assert "step 99" in verdict.sentence
    assert verdict.evidence[-1].says == "all replicas were equal at step 49"


def test_it_is_judged_when_the_last_live_replica_has_reported():
    job = Job()
    job.steps(0)
    for rank, value in ((0, "x"), (1, "x"), (2, "y")):
        job.report(49, rank, value)
    assert job.seen == []
    job.report(49, 3, "x")
    assert job.seen == [("ES-N04", (2,))]
    ended = Exit(rank=3, at=1.0, code=1)
    job = Job()
    job.steps(0)
    job.state = msgspec.structs.replace(STATE, workers={**STATE.workers, 3: Worker(rank=3, node="n0", exit=ended)})
    for rank, value in ((0, "x"), (1, "x"), (2, "y")):
        job.report(49, rank, value)
    assert job.seen == [("ES-N04", (2,))]


def test_again_after_they_were_equal_and_after_a_restart():
    job = Job()
    job.steps(0)
    job.steps(49, r2="other")
    job.steps(99)
    job.steps(149, r2="other")
    assert job.seen == [("ES-N04", (2,))] * 2
    job.steps(200, generation=1, r2="other")  # from a snapshot that was wrong already: still the same machine's fault
    assert job.seen == [("ES-N04", (2,))] * 3


class Repeated(Job):
    """Replicas of many parameters, so that names say something."""

    num_names = 8

    def difference(
        self, generation: int, wrong: str, *, name: str = "p1", others: str = "usual", step: int = 49
    ) -> str:
        """The blame for rank 2, which alone holds other bits of one parameter after the step."""
        for at, odd in ((step - 10, False), (step, True)):
            for rank in ALL:
                values = {f"p{number}": f"{others} {number} at {at}" for number in range(self.num_names)}
                if odd and rank == 2:
                    values[name] = wrong
                digest = RankDigest(rank=rank, step=at, values=values, replicas=ALL)
                event = DigestsReported(at=float(at), node="n0", generation=generation, digests=(digest,))
                self.found += self.watch.take(event, self.state)
        verdict = self.found[-1].verdict
        assert (verdict.code, verdict.ranks) == ("ES-N04", (2,))
        return str(verdict.blame)


def test_the_same_wrong_bits_when_the_steps_are_done_again_blame_no_machine():
    job = Repeated()
    assert job.difference(0, "wrong") == "machine"
    assert job.difference(1, "wrong") == "unknown"
    assert "before the job went back" in job.found[-1].verdict.sentence
    assert "before the job went back" in job.found[-1].verdict.evidence[-1].says
    assert job.difference(2, "wrong") == "unknown"
    assert len(job.found) == 3


def test_other_wrong_bits_blame_the_machine_again():
    job = Repeated()
    assert job.difference(0, "wrong") == "machine"
    assert job.difference(1, "also wrong") == "machine"
    assert job.difference(2, "wrong", name="p3") == "machine"


def test_where_nothing_comes_twice_the_names_of_what_is_wrong_are_compared():
    job = Repeated()
    assert job.difference(0, "wrong", others="first") == "machine"
    assert job.difference(1, "also wrong", others="second") == "unknown"
    assert job.difference(2, "also wrong", others="third", name="p2") == "machine"
    job = Repeated()
    assert job.difference(0, "wrong") == "machine"
    assert job.difference(1, "wrong of a later step", step=59) == "unknown"
    job = Repeated()
    job.num_names = 4
    assert job.difference(0, "wrong", others="first") == "machine"
    assert job.difference(1, "also wrong", others="second") == "machine"


def test_a_first_step_that_was_not_compared_before_waits_for_one_that_was():
    """Else nothing but names could be compared, and a small model has few."""
    job = Repeated()
    job.num_names = 4
    assert job.difference(0, "wrong") == "machine"
    job.difference(1, "wrong of an earlier step", step=40)
    assert len(job.found) == 1
    assert job.difference(1, "wrong", step=49) == "unknown"
    assert len(job.found) == 2


def test_a_generation_without_a_difference_in_between_forgets_none():
    job = Repeated()
    assert job.difference(0, "wrong") == "machine"
    job.steps(200, generation=1)
    assert job.difference(2, "wrong") == "unknown"


def test_many_that_differ_are_no_memory_without_bound():
    job = Repeated()
    for generation in range(50):
        job.difference(generation, f"wrong {generation}")
    repeats = job.watch._repeats
    assert len(repeats._before) + len(repeats._now) <= 2 * 8
    assert all(len(each) <= 4 for each in (*repeats._before.values(), *repeats._now.values()))


def test_replicas_that_never_were_equal_blame_nobody():
    job = Job()
    job.steps(0, 49, 99, r2="other")
    assert job.seen == [("ES-N06", ())]
    assert "rank 2" in job.found[0].verdict.sentence
    job.steps(149)
    job.steps(199, r1="other")
    assert job.seen[1:] == [("ES-N04", (1,))]


def test_without_a_majority_it_says_that_they_differ():
    job = Job()
    job.steps(0)
    job.steps(49, r2="x", r3="y", r1="z")
    assert [code for code, _ in job.seen] == ["ES-N05"]


def test_replicas_are_learned_where_nobody_declared_them():
    """Two stages of two replicas: ranks 0 and 1 hold one stage, 2 and 3 another."""
    job = Job(replicas=())
    for step in (0, 49, 99):
        for rank in ALL:
            job.report(step, rank, f"{step} of stage {rank // 2}")
    assert job.seen == []
    for rank in ALL:
        job.report(149, rank, "flipped" if rank == 3 else f"149 of stage {rank // 2}")
    assert job.seen == [("ES-N05", (2, 3))]  # of two replicas nobody can say which one is right
    assert job.found[0].verdict.group_ranks == (2, 3)


def test_a_learned_group_of_three_names_the_one():
    job = Job(replicas=())
    job.steps(0, 49, r0="another model")
    job.steps(99, r0="another model", r2="flipped")
    assert job.seen == [("ES-N04", (2,))]


def test_parameters_that_never_change_teach_nothing():
    job = Job(replicas=())
    for step in (0, 49):
        job.steps(step, **{f"r{rank}": "initial" for rank in ALL})
    job.steps(99, **{f"r{rank}": f"own way {rank}" for rank in ALL})  # four trainings from one seed
    assert job.seen == []


def test_the_brain_is_not_disturbed_and_it_is_found_later():
    job = Job()
    job.steps(0)
    job.state = msgspec.structs.replace(STATE, incident=INCIDENT)
    job.steps(49, r1="x")
    assert job.seen == []
    job.state = STATE
    job.steps(99, r1="x")
    assert job.seen == [("ES-N04", (1,))]


def test_replicas_at_equal_distances():
    """Two pipeline stages, ranks in turns: 0 and 2 are replicas, 1 and 3 are."""
    job = Job()
    for step in (0, 49):
        for rank in ALL:
            value = "flipped" if (step, rank) == (49, 3) else f"{step} of stage {rank % 2}"
            digest = RankDigest(rank=rank, step=step, values={"w": value}, replicas=(rank % 2, rank % 2 + 2), stride=2)
            event = DigestsReported(at=1.0, node="n0", generation=0, digests=(digest,))
            job.found += job.watch.take(event, STATE)
    assert job.seen == [("ES-N05", (1, 3))]


def test_memory_is_bounded_and_a_rank_that_stays_silent_disturbs_nobody():
    job = Job()
    for step in range(0, 1000, 10):
        for rank in (0, 1, 2):
            job.report(step, rank)
    assert len(job.watch._steps) == MAX_STEPS
    assert job.seen == []


def test_reports_sent_again_change_nothing():
    job = Job(replicas=())
    for step in (0, 49, 99):
        job.steps(step)
        job.steps(step)
    job.steps(149, r1="x")
    job.steps(149, r1="x")
    assert job.seen == [("ES-N04", (1,))]


def test_what_cannot_be_compared_is_only_said(caplog):
    job = Job()
    digest = RankDigest(rank=0, step=0, values={}, missing="sharded")
    event = DigestsReported(at=0.0, node="n0", generation=0, digests=(digest, digest))
    with caplog.at_level("INFO", logger="everstep.controller"):
        assert job.watch.take(event, STATE) == ()
    assert [record.getMessage() for record in caplog.records] == ["digests of rank 0: sharded"]


def test_replicas_of_lost_numbers_are_told_when_numbers_are_fine_again():
    job = Job()
    job.watch = DigestDetector(are_numbers_lost=lambda at: 10 < at < 60)
    job.steps(0)
    job.steps(49, r2="nan", r3="another nan")
    assert job.seen == []
    job.steps(99, r2="other")
    assert job.seen == [("ES-N04", (2,))]
    job = Job()
    job.watch = DigestDetector(are_numbers_lost=lambda at: 10 < at < 60)
    job.steps(0)
    job.steps(49, 99, r2="other")
    assert job.seen == [("ES-N04", (2,))], "found meanwhile is not told meanwhile"


def test_steps_that_are_counted_anew_are_compared():
    job = Job()
    job.steps(*range(1000, 1100, 10))
    job.steps(0, 10, 20)
    job.steps(30, r2="other")
    assert job.seen == [("ES-N04", (2,))]
    job = Job()
    job.steps(*range(0, 100, 10))
    job.steps(0, 10, r2="other")
    assert job.seen == [("ES-N04", (2,))], "the same numbers again"
    job = Job()
    job.steps(0, 10)
    job.steps(0, 10, r0="later", r1="later", r2="other", r3="later")
    assert job.seen == [("ES-N04", (2,))], "and while they are held"
    assert {step for step, _ in job.watch._compared} == set(job.watch._steps)
