"""Who waits for whom: the culprit is marked as missing where others wait, and nobody is shown in two states."""

import sys
from pathlib import Path

import msgspec
import pytest

from everstep.analyzer.hangs.combine import diagnose
from everstep.analyzer.observations.records import Case, RankEvidence
from everstep.analyzer.reading.flight import normalise
from everstep.report.picture.wavefront import Mark, ranks_page

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from matrix.flights import FAULTS, make_guilty, make_healthy


def case_of(made):
    flights = {rank: normalise(raw, rank) for rank, raw in made.records.items()}
    ranks = [
        RankEvidence(rank=rank, flight=msgspec.structs.replace(flight, taken_at=made.taken_at))
        for rank, flight in flights.items()
    ]
    return Case(at=made.taken_at, ranks=tuple(ranks), world=made.world)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("seed", range(4))
def test_each_rank_of_a_row_has_one_mark_and_somebody_waits_in_it(fault, seed):
    case = case_of(make_guilty(seed, fault))
    diagnosis = diagnose(case)
    page = ranks_page(case, diagnosis, ())
    assert page.sentence == diagnosis.verdict.sentence
    for wave in page.waves:
        assert len(wave.marks) == len(wave.ranks) == len(set(wave.ranks))
        assert set(wave.marks) <= {str(mark) for mark in Mark}
        assert Mark.WAITS in wave.marks
        assert not wave.is_blamed or Mark.ABSENT in wave.marks
    blamed = [wave.is_blamed for wave in page.waves]
    assert blamed == sorted(blamed, reverse=True), "blamed ones first"
    assert msgspec.json.decode(msgspec.json.encode(page))["num_ranks"] == page.num_ranks


def test_a_host_that_stopped_is_shown_as_the_rank_that_never_arrived():
    shown = 0
    for seed in range(10):
        case = case_of(make_guilty(seed, "stopped-host"))
        diagnosis = diagnose(case)
        page = ranks_page(case, diagnosis, ())
        for wave in page.waves[:1]:
            missing = {rank for rank, mark in zip(wave.ranks, wave.marks, strict=True) if mark == Mark.ABSENT}
            shown += bool(missing & set(diagnosis.verdict.ranks))
    assert shown == 10


def test_a_healthy_job_blames_no_row():
    for seed in range(10):
        case = case_of(make_healthy(seed))
        page = ranks_page(case, diagnose(case), ())
        assert not any(wave.is_blamed for wave in page.waves)
