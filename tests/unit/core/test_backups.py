"""When copies are placed, and again; what is said of those that cannot be safe. The brain alone."""

from everstep.core.state.policy import Policy
from everstep.model import actions, events
from everstep.model.actions import Action
from everstep.model.facts import RankGroup
from everstep.model.spec import RunSpec
from everstep.testing.cluster import Cluster

PAIRS = (RankGroup(title="pp", ranks=(0, 1)), RankGroup(title="pp", ranks=(2, 3)))


def cluster(nodes: int = 4, standby: int = 0, **policy: object) -> Cluster:
    spec = RunSpec(program="train.py", num_slots=nodes, nproc_per_node=max(1, 4 // nodes), num_standby=standby)
    made = Cluster(spec, Policy(**policy))  # type: ignore[arg-type]
    made.start()
    return made


def placed(decided: list[Action]) -> dict[int, str]:
    return {b.rank: b.node for a in decided if isinstance(a, actions.PlaceBackups) for b in a.backups}


def learn(job: Cluster, *groups: RankGroup, generation: int | None = None) -> list[Action]:
    generation = job.state.generation if generation is None else generation
    return job.feed(events.GroupsLearned(at=job.clock.now, generation=generation, groups=groups))


def test_every_rank_has_a_copy_elsewhere_as_soon_as_all_run_and_after_each_restart():
    job = cluster(standby=1)
    first = {
        b.rank: b for r in job.records for a in r.actions if isinstance(a, actions.PlaceBackups) for b in a.backups
    }
    assert sorted(first) == [0, 1, 2, 3]
    assert all(job.state.workers[rank].node != backup.node for rank, backup in first.items())
    assert all(backup.endpoint == job.state.members[backup.node].endpoint for backup in first.values())
    assert placed(job.train(3)) == {}, "once per generation"
    again = placed(job.lose_node("n1") + job.train(1))
    assert sorted(again) == [0, 1, 2, 3]
    assert "n1" not in again.values()


def test_groups_that_are_learned_move_the_copies_they_would_take_along():
    job = cluster()
    before = dict(job.state.backups)
    after = placed(learn(job, *PAIRS))
    assert after != before
    for group in PAIRS:
        homes = {job.state.workers[rank].node for rank in group.ranks}
        assert all(after[rank] not in homes for rank in group.ranks)
    assert placed(learn(job, *PAIRS)) == {}, "nothing new"
    job.kill(0)
    job.train(1)
    assert job.state.backups == after, "what was learned holds for the next generation"


def test_groups_of_an_older_generation_are_fenced():
    job = cluster()
    job.kill(0)
    assert placed(learn(job, *PAIRS, generation=0)) == {}
    assert job.state.groups == ()


def test_what_no_placement_protects_from_is_said():
    job = cluster(nodes=2)
    everywhere = RankGroup(title="tp", ranks=(0, 1, 2, 3))
    decided = learn(job, everywhere)
    assert placed(decided) == {}, "the copies are where they can be"
    refused = [a for a in decided if isinstance(a, actions.Refused)]
    assert len(refused) == 1
    assert "both copies would be lost with its group tp, which spans every node" in refused[0].why
    assert refused[0].what == "a copy of 4 ranks that outlives every group"


def test_none_on_one_node_or_when_switched_off():
    assert cluster(nodes=1).state.backups == {}
    assert cluster(backup=False).state.backups == {}


def test_they_are_issued_again_to_a_node_that_comes_back():
    job = cluster()
    assert placed(job.restart_controller()) == job.state.backups
