"""Uneven jobs: like with like, three shares, and who may be called slow in them."""

import random
import sys
from pathlib import Path

import pytest

from everstep.analyzer.observations.records import ParallelGroup, RankTiming
from everstep.analyzer.slowness.places import peers_of, places_of
from everstep.analyzer.slowness.shares import Table, of_rounds, weigh
from everstep.analyzer.slowness.slow import judge

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from slow_workers import KINDS, case, make, rounds

BEGINNINGS = ((False, True), (True, False), (True, True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_slow_worker_is_named_and_no_other(kind: str) -> None:
    right = 0
    jobs = [(seed, known, early) for seed in range(8) for known, early in BEGINNINGS]
    for seed, known, early in jobs:
        verdict, slow = case(500 + seed, kind, 1.5, is_known=known, is_early=early)
        named = set(verdict.ranks) if verdict.refusal is None else set()
        assert named <= slow, (seed, verdict.sentence)
        right += named == slow
    assert right >= 0.9 * len(jobs)


@pytest.mark.parametrize("kind", ["uneven sequences", "both"])
@pytest.mark.parametrize("factor", [1.2, 1.3, 2.0])
@pytest.mark.parametrize(("is_known", "is_early"), BEGINNINGS)
def test_in_uneven_pipelines_two_stages_or_two_replicas_are_enough(kind, factor, is_known, is_early) -> None:
    """What a pipeline's stages share is taken out first: a slow rank moves one of their differences, and the order of a
    whole stage. Of two replicas one is always the longer one: 51021 blamed its last stage."""
    for seed in (24001, 24005, 24010, 24020, 51021, *range(71001, 71006)):
        verdict, slow = case(seed, kind, factor, is_known=is_known, is_early=is_early)
        assert verdict.refusal is None, (seed, verdict.sentence)
        assert set(verdict.ranks) == slow, (seed, verdict.sentence)


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_slow_worker_nobody_is_accused(kind: str) -> None:
    for seed in range(20):
        verdict, _ = case(700 + seed, kind, 1.0, is_known=bool(seed % 2), is_early=False)
        assert not verdict.ranks or verdict.refusal is not None, verdict.sentence


def test_a_slow_machine_is_slow_whenever_it_began() -> None:
    """Its place does not explain it: the other ranks of its stage are usual."""
    verdict, slow = case(3, "long stage", 2.0, is_known=True, is_early=True)
    assert (verdict.code, set(verdict.ranks)) == ("ES-S01", slow)


def test_alone_in_its_stage_only_the_beginning_can_tell() -> None:
    groups = (ParallelGroup(name="p", kind="pp", ranks=(0, 1, 2, 3), complete=True),)

    def of(*seconds: float) -> list[list[RankTiming]]:
        dice = random.Random(1)
        return [
            [RankTiming(rank=r, compute_s=s * dice.gauss(1, 0.005)) for r, s in enumerate(seconds)] for _ in range(5)
        ]

    made_so = judge(of(1, 1, 1, 1.6), groups)
    assert made_so.refusal is not None or not made_so.ranks
    same = judge(of(1, 1, 1, 1.6), groups, of(1, 1, 1, 1.6))
    assert same.refusal is not None or not same.ranks
    became = judge(of(1, 1.5, 1, 1.6), groups, of(1, 1, 1, 1.6))
    assert (became.code, became.ranks) == ("ES-S01", (1,))


def test_from_arrivals_a_slow_pipeline_is_one_of_its_ranks() -> None:
    usual, groups, _ = make(random.Random(0), "even", 4, 4)
    slow = dict.fromkeys(groups[2].ranks, 1.5)
    found = rounds(random.Random(0), usual, groups, 0.0, slow)
    arrivals = judge(found, groups, from_arrivals=True)
    assert (arrivals.code, arrivals.ranks, arrivals.group) == ("ES-S02", (), groups[2])
    assert arrivals.refusal is not None
    assert "one of ranks 2,6,10,14" in arrivals.sentence


def test_places_are_known_only_if_each_rank_has_one() -> None:
    pp = [ParallelGroup(name=str(i), kind="pp", ranks=(i, i + 2)) for i in range(2)]
    places = places_of(pp, [0, 1, 2, 3])
    assert peers_of(3, places, [0, 1, 2, 3]) == [2]
    assert places_of(pp, [0, 1, 2, 3, 4]) == {}
    assert places_of([*pp, ParallelGroup(name="9", kind="pp", ranks=(0, 3))], [0, 1, 2, 3]) == {}
    assert peers_of(0, {}, [0, 1, 2]) == [1, 2]


def table(stages: int, pipelines: int, *, slow=(), last=1.0, scatter=0.0, steps=12, seed=0) -> Table:
    dice = random.Random(seed)
    made: dict[int, dict[int, float]] = {rank: {} for rank in range(stages * pipelines)}
    for step in range(steps):
        work = [dice.lognormvariate(0, scatter) for _ in range(pipelines)]
        for rank, mine in made.items():
            base = last if rank // pipelines == stages - 1 else 1.0
            mine[step] = base * work[rank % pipelines] * (1.5 if rank in slow else 1.0) * dice.gauss(1, 0.01)
    return Table(compute_s=made, places={rank: (rank // pipelines, rank % pipelines) for rank in made})


def test_each_share_is_told_by_itself() -> None:
    assert weigh(table(4, 4)).found == ()
    assert [s.code for s in weigh(table(4, 4, last=1.6)).found] == ["ES-S05"]
    assert [s.code for s in weigh(table(4, 4, scatter=0.2)).found] == ["ES-S04"]
    worker = weigh(table(4, 4, slow=[5])).found
    assert [(s.code, s.ranks) for s in worker] == [("ES-S01", (5,))]
    every = weigh(table(4, 4, slow=[5], last=1.6, scatter=0.2)).found
    assert every[0].code == "ES-S01"
    assert {s.code for s in every} == {"ES-S01", "ES-S04", "ES-S05"}
    assert every[0].ranks == (5,)


def test_ranks_without_places_are_compared_with_each_other() -> None:
    flat = Table(compute_s=table(1, 8, slow=[3]).compute_s)
    workers = weigh(flat).workers
    assert workers is not None
    assert workers.ranks == (3,)


@pytest.mark.parametrize(
    "made", [{}, {0: {1: 1.0}}, {0: {}, 1: {}}, {0: {1: 0.0, 2: 0.0, 3: 0.0}, 1: {1: 0.0, 2: 0.0, 3: 0.0}}]
)
def test_too_little_says_nothing(made: dict[int, dict[int, float]]) -> None:
    assert weigh(Table(compute_s=made)).found == ()


def test_the_rounds_of_a_live_run_give_the_same_shares() -> None:
    usual, groups, _ = make(random.Random(5), "long stage", 4, 4)
    found = of_rounds(rounds(random.Random(5), usual, groups, 0.0, {6: 1.5}), groups)
    assert found.stage is not None
    assert found.workers is not None
    assert found.workers.ranks == (6,)
    assert "in nearly every round" in found.workers.sentence
    pipeline = dict.fromkeys(groups[1].ranks, 1.5)
    found = of_rounds(rounds(random.Random(5), usual, groups, 0.0, pipeline), groups)
    assert found.workers is not None
    assert found.workers.sentence.startswith("one of ranks"), "by their arrivals alone all of its stages look slow"
    assert of_rounds([], groups).found == ()
