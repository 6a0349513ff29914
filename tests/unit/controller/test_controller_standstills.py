"""A standstill that is known: when the detector looks again, and when it has ended."""

import msgspec
import pytest
from hanging_job import OUTSIDE, Job

from everstep.analyzer.exits import FaultFacts
from everstep.controller.detectors.hangs import AGAIN_S
from everstep.core.state.frozenmap import FrozenMap
from everstep.core.state.schema import Incident, Place, Standstill, State
from everstep.model.events import StandstillEnded


def standing(job: Job, place: str = "doubtful train.py:88 upload") -> State:
    incident = Incident(id="i1", opened_at=job.now, generation=0, facts=FaultFacts(at=job.now))
    still = Standstill(incident=incident, since=10.0, act_at=None, place=place)
    return msgspec.structs.replace(job.state, standstill=still)


def test_a_standstill_that_is_known_is_told_once_and_its_end_as_well():
    job = Job()
    job.until(10)
    job.stands_at, job.changes[0] = 10.0, {**OUTSIDE, "place": "train.py:88 upload"}
    (suspected,) = job.until(16)
    job.state = standing(job)
    assert suspected
    assert job.until(400) == []
    job.stands_at, job.changes[0] = 1e9, {}
    (ended,) = job.until(401.5)
    assert (ended.incident, ended.lasted_s) == ("i1", pytest.approx(391, abs=1.5))


def test_another_controller_sees_the_end_of_a_standstill_as_well():
    job = Job(**OUTSIDE)
    job.state, job.stands_at = standing(job), 10.0
    job.now = 100.0
    assert job.until(110) == []
    job.stands_at = 1e9
    (ended,) = job.until(111)
    assert isinstance(ended, StandstillEnded)


def test_one_rank_that_moves_ends_no_standstill():
    job = Job()
    job.until(10)
    job.stands_at, job.changes[0] = 10.0, dict(OUTSIDE)
    job.until(16)
    job.state = standing(job)
    job.changes[0] = {**OUTSIDE, "communication_s": 0.1, "last_step_at": None, "last_step": None}
    assert not any(isinstance(found, StandstillEnded) for found in job.until(60))


def test_what_was_doubtful_and_is_so_no_more_is_looked_at_again():
    job = Job()
    job.until(10)
    job.stands_at, job.changes[0] = 10.0, dict(OUTSIDE)
    job.until(16)
    job.state = standing(job)
    assert job.until(30) == []
    job.changes[0] = {}
    assert job.until(10 + 2 * AGAIN_S), "nobody has a reason any more"


def test_a_place_that_took_as_long_before_is_not_told_again():
    job = Job()
    places = FrozenMap({"doubtful train.py:88 upload": Place(longest_s=60.0)})
    job.state = msgspec.structs.replace(job.state, places=places)
    job.until(10)
    job.stands_at, job.changes[0] = 10.0, {**OUTSIDE, "place": "train.py:88 upload"}
    assert job.until(125) == []
    assert job.until(140), "longer than ever"


def test_who_is_stopped_while_the_job_stands_still_for_another_reason_is_news():
    job = Job()
    job.until(10)
    job.stands_at, job.changes[0] = 10.0, {**OUTSIDE, "place": "train.py:88 upload"}
    assert len(job.until(20)) == 1
    job.state = standing(job)
    job.changes[1] = {"state": "T"}
    assert len(job.until(20 + AGAIN_S)) == 1
