"""What the view says of copies and checkpoints is what the brain has."""

from everstep.core.state.policy import Policy
from everstep.journal.fold import fold
from everstep.journal.kept import Kept
from everstep.model import actions, events
from everstep.model.facts import Checkpoint
from everstep.model.record import Header
from everstep.model.spec import RunSpec
from everstep.testing.cluster import Cluster


def cluster(standby: int = 1, **policy: object) -> Cluster:
    spec = RunSpec(
        program="train.py", num_slots=2, num_standby=standby, checkpoint_dir="/ckpt", checkpoint_every_s=10.0
    )
    made = Cluster(spec, Policy(**policy))  # type: ignore[arg-type]
    made.start()
    return made


def kept(job: Cluster) -> Kept:
    found = fold(Header(run="r1", everstep_version="test", policy={}), job.records).kept
    assert found.trusted_step == job.state.trusted_step
    assert found.is_tier_known == job.state.checkpoints_known
    return found


def late_commit(job: Cluster, step: int, dropped: tuple[int, ...] = ()) -> None:
    found = Checkpoint(step=step, path=f"/ckpt/step-{step}", world_size=2, at=job.clock.now)
    job.feed(events.CheckpointCommitted(at=job.clock.now, node="n0", step=step, checkpoint=found, dropped=dropped))


def committing(job: Cluster) -> int:
    job.held_back.add("CommitCheckpoint")
    for _ in range(100):
        if any(isinstance(action, actions.CommitCheckpoint) for action in job.train(1)):
            assert job.state.persisting is not None
            return job.state.persisting.step
    raise AssertionError("no step is ever committed")


def test_what_nobody_holds_any_more_is_not_trusted():
    job = cluster()
    job.train(5)
    job.agree()
    assert kept(job).trusted_step == 4
    job.train(3)
    job.memory.own["n0"][0].pop(4, None)  # the trusted snapshot of this rank is gone
    job.anomaly("ES-N05", 1)
    assert any(isinstance(a, actions.Refused) and "trusted" in a.what for r in job.records for a in r.actions)
    assert kept(job).trusted_step is None


def test_an_agreement_that_is_told_with_the_difference_counts():
    job = cluster()
    job.train(5)
    job.agree(2)
    job.held_back.add("StopWorkers")
    job.anomaly("ES-N05", 1, agreed=4)
    assert kept(job).trusted_step == 4


def test_an_agreement_that_the_brain_does_not_take_is_not_shown():
    job = cluster()
    job.train(5)
    job.agree(2)
    job.kill(0)
    job.feed(events.ReplicasAgreed(at=job.clock.now, generation=0, step=4))
    assert kept(job).trusted_step == 2


def test_another_attempt_begins_without_copies_and_without_what_was_under_way():
    job = cluster()
    committing(job)
    before = kept(job)
    assert before.backups
    assert before.written is not None
    job.held_back |= {"AcquireNode", "OpenStore"}
    job.feed(events.RunReopened(at=job.clock.now, attempt=2))
    after = kept(job)
    assert (after.backups, after.written, after.last_failure, after.is_tier_known) == ({}, None, "", False)


def test_a_late_commit_is_shown_and_what_it_dropped_is_not():
    job = cluster()
    job.train(15)
    (first,) = [c.step for c in kept(job).checkpoints]
    step = committing(job)
    job.wait(400.0)
    assert kept(job).last_failure
    late_commit(job, step, dropped=(first,))
    shown = kept(job)
    assert [c.step for c in shown.checkpoints] == [step] == [c.step for c in job.state.checkpoints]
    assert shown.last_failure == ""


def test_a_checkpoint_that_is_struck_cannot_be_restored():
    job = cluster()
    job.train(5)
    job.agree()
    job.train(10)
    assert kept(job).checkpoints
    job.anomaly("ES-N05", 1)
    assert not kept(job).checkpoints


def test_a_node_whose_part_is_there_may_be_lost():
    job = cluster(standby=0)
    job.train(7)
    job.held_back.add("PersistSnapshot")
    job.succeed()
    step = job.state.persisting.step if job.state.persisting is not None else -1
    job.feed(events.SnapshotPersisted(at=job.clock.now, node="n0", generation=0, step=step))
    job.lose_node("n0")
    written = kept(job).written
    assert written is not None
    assert written.is_under_way
    job.feed(events.SnapshotPersisted(at=job.clock.now, node="n1", generation=0, step=step))
    assert [c.step for c in kept(job).checkpoints] == [step]
