"""What is learned of the job's parallel groups, and how often that is told."""

import msgspec
from one_node import running

from everstep.controller.detectors.groups import GroupDetector
from everstep.core.state.schema import Worker
from everstep.model.events import GroupsLearned
from everstep.model.facts import Exit, RankGroup, RankRound
from everstep.model.observations import RoundReported

STATE = running(4)
TP = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
PP = {0: (0, 2), 1: (1, 3), 2: (0, 2), 3: (1, 3)}


class Job:
    def __init__(self) -> None:
        self.watch = GroupDetector()
        self.state = STATE
        self.told: list[GroupsLearned] = []

    def report(self, number, *ranks, generation=0, groups=("tp",), **more):
        known = {"tp": TP, "pp": PP}
        rounds = tuple(
            RankRound(
                rank=rank,
                num_steps=10,
                window_s=10.0,
                groups={name: known[name][rank] for name in groups} | more,
                titles={"tp": "mesh_tp"},
            )
            for rank in ranks
        )
        event = RoundReported(at=1.0 + number, node="n0", generation=generation, round=number, ranks=rounds)
        found = self.watch.take(event, self.state)
        self.told += found
        for each in found:
            self.state = msgspec.structs.replace(self.state, groups=each.groups)


def test_they_are_told_once_when_every_rank_has_declared_them():
    job = Job()
    job.report(1, 0, 1)
    assert job.told == []
    job.report(1, 2, 3)
    job.report(2, 0, 1, 2, 3)
    job.report(3, 0, 1, 2, 3)
    assert [each.groups for each in job.told] == [
        (RankGroup(title="mesh_tp", ranks=(0, 1)), RankGroup(title="mesh_tp", ranks=(2, 3)))
    ]


def test_again_when_they_grow_and_not_node_by_node():
    job = Job()
    job.report(1, 0, 1, 2, 3)
    job.report(2, 0, 1, groups=("tp", "pp"))
    job.report(2, 2, 3, groups=("tp", "pp"))
    assert len(job.told) == 1
    job.report(3, 0, 1, groups=("tp", "pp"))
    job.report(3, 2, 3, groups=("tp", "pp"))
    assert len(job.told) == 2
    assert {group.title for group in job.told[1].groups} == {"mesh_tp", "pp"}
    assert len(job.told[1].groups) == 4


def test_a_restart_tells_nothing_that_is_known():
    job = Job()
    job.report(1, 0, 1, 2, 3)
    job.report(2, 0, 1, 2, 3, generation=1)
    assert len(job.told) == 1


def test_who_has_ended_is_not_waited_for():
    job = Job()
    gone = Worker(rank=3, node="n0", exit=Exit(rank=3, at=1.0, code=0))
    job.state = msgspec.structs.replace(STATE, workers={**STATE.workers, 3: gone})
    job.report(1, 0, 1, 2)
    assert len(job.told) == 1


def test_the_whole_job_single_ranks_and_nonsense_are_no_groups():
    job = Job()
    job.report(1, 0, 1, 2, 3, groups=(), world=(0, 1, 2, 3), own=(2,), odd=(1, 77))
    assert job.told == []
