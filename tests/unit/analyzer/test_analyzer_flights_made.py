"""Made records of NCCL jobs: the broken rank is named and no other, also without one file; a job that moves is left."""

import sys
from pathlib import Path

import msgspec
import pytest

from everstep.analyzer.flights.localise import localise
from everstep.analyzer.hangs.combine import diagnose
from everstep.analyzer.observations.positions import Positions
from everstep.analyzer.observations.records import Case, Collective, Entries, FlightRecord, ParallelGroup, RankEvidence
from everstep.analyzer.reading.flight import normalise

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from flight_records import judge
from matrix.flights import FAULTS, Made, make_guilty, make_healthy

NUM = 8


@pytest.mark.parametrize("fault", FAULTS)
def test_the_broken_rank_is_named_and_no_other(fault: str) -> None:
    for seed in range(NUM):
        made = make_guilty(100 + seed, fault)
        verdict = judge(made)
        assert set(verdict.ranks) == made.guilty, (seed, verdict.sentence)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "skipped"])
def test_a_lost_file_of_an_innocent_rank_changes_nothing(fault: str) -> None:
    for seed in range(NUM):
        made = make_guilty(200 + seed, fault)
        lost = next(rank for rank in made.world[seed % len(made.world) :] + made.world if rank not in made.guilty)
        verdict = judge(made, lost)
        assert set(verdict.ranks) == made.guilty, (seed, lost, verdict.sentence)


def test_a_job_with_full_queues_is_healthy_also_without_a_file() -> None:
    for seed in range(2 * NUM):
        made = make_healthy(300 + seed)
        for lost in (None, seed % len(made.world)):
            verdict = judge(made, lost)
            assert (verdict.ranks, verdict.code) == ((), "ES-H00"), (seed, verdict.sentence)


def test_the_status_alone_says_where_a_rank_stands() -> None:
    """A rank that has finished all that it queued shows no entry in a dump of active ones."""
    made = make_guilty(6, "stopped-host")
    rank = min(made.guilty)
    empty = {**made.records[rank], "entries": []}
    record = normalise(empty, rank)
    status = {each.group: each for each in record.status}
    assert status["0"].enqueued == status["0"].completed
    assert status["0"].enqueued == made.records[rank]["pg_status"]["0"]["last_enqueued_collective"]
    records = [normalise(raw, other) for other, raw in made.records.items() if other != rank]
    found = localise(Positions([*records, record]), 0.0)
    assert found[0].ranks == (rank,)


def test_names_that_are_hashes_have_a_status_only_where_an_entry_shows_it() -> None:
    raw = {
        "version": "2.10",
        "pg_config": {"c0ffee": {"name": "c0ffee", "desc": "mesh_tp", "ranks": "[0, 1]"}},
        "pg_status": {"3": {"last_enqueued_collective": 5, "last_completed_collective": 5}},
        "entries": [],
    }
    assert normalise(raw, 0).status == ()


@pytest.mark.parametrize("status", [None, [], {"0": 3}, {"x": {}}, {"0": {"last_enqueued_collective": "many"}}])
def test_an_odd_status_does_no_harm(status: object) -> None:
    raw = {**make_healthy(0).records[0], "pg_status": status}
    assert normalise(raw, 0).rank == 0


def test_each_rank_is_told_the_operation_that_it_missed() -> None:
    """Two ranks of two pipelines stop: one sentence each."""
    made = make_guilty(2, "stopped-host")
    verdict = judge(made)
    for rank in verdict.ranks:
        assert f"rank {rank} never" in verdict.sentence


@pytest.mark.parametrize("missing", [None, 5])
def test_a_large_job_is_judged_without_comparing_everybody_with_everybody(missing: int | None) -> None:
    """Two thousand ranks; how often a position is asked for grows with the ranks, not with their square."""
    num = 2000
    world = ParallelGroup(name="0", desc="default_pg", ranks=tuple(range(num)), kind="world", complete=True)
    records = [
        FlightRecord(
            rank=rank,
            groups=(world,),
            world=world.ranks,
            is_queued=True,
            entries=Entries.of(
                Collective(group="0", seq=seq, op="all_reduce", record_id=seq, completed=seq < 3)
                for seq in range(1, 3 if rank == missing else 5)
            ),
        )
        for rank in range(num)
    ]
    positions = Positions(records)
    asked = 0
    at = positions.at

    def count(name: str, rank: int):  # type: ignore[no-untyped-def]
        nonlocal asked
        asked += 1
        return at(name, rank)

    positions.at = count  # type: ignore[method-assign]
    found = localise(positions, 0.0)
    assert found[0].ranks == (() if missing is None else (missing,))
    assert asked < 30 * num


@pytest.mark.parametrize("seed", [14067, 14085])
def test_a_rank_that_skipped_is_named_by_its_sisters_where_its_peers_file_is_lost(seed: int) -> None:
    made = make_guilty(seed)
    innocent = sorted(set(made.world) - made.guilty)
    assert set(judge(made, innocent[seed % len(innocent)]).ranks) == made.guilty


def test_in_a_job_that_was_watched_its_own_pauses_say_what_is_fresh() -> None:
    """Two and a half seconds after the last sign of life, queues of a job of NCCL that nobody watched may be as they
    always are; where no pause is longer than two seconds, they are not."""
    num_unclear = 0
    for seed in range(NUM):
        made = make_guilty(100 + seed, "stopped-host")
        case = _taken_soon(made, 2.5)
        unwatched = diagnose(case).verdict
        assert unwatched == diagnose(msgspec.structs.replace(case, usual_s=60.0)).verdict
        num_unclear += unwatched.code == "ES-H00"
        watched = diagnose(msgspec.structs.replace(case, usual_s=2.0)).verdict
        assert set(watched.ranks) == made.guilty, (seed, watched.sentence)
    assert num_unclear >= NUM // 2


def _taken_soon(made: Made, after_s: float) -> Case:
    records = {rank: normalise(raw, rank) for rank, raw in made.records.items()}
    seen = [record.entries.seen_at for record in records.values()]
    taken_at = max(at for at in seen if at is not None) + after_s
    ranks = tuple(
        RankEvidence(rank=rank, flight=msgspec.structs.replace(record, taken_at=taken_at))
        for rank, record in records.items()
    )
    return Case(at=taken_at, ranks=ranks, world=made.world)
