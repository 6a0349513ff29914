"""Steps on their way to the persistent tier when the end of it, or of the run, is unusual: late, lost, in a hurry."""

import pytest

from everstep.core.restore import holdings
from everstep.core.restore.persistence import COMMIT_LIMIT_S, LIMIT_TIMER, SLACK_S
from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.model import actions, events
from everstep.model.actions import Action
from everstep.model.facts import Checkpoint
from everstep.model.spec import RunSpec
from everstep.testing.cluster import Cluster

ROOT = "/ckpt"
EVERY_S = 10.0


def cluster(*, nodes: int = 2, standby: int = 0, keep: int = 3, every_s: float = EVERY_S, **policy: object) -> Cluster:
    spec = RunSpec(
        program="train.py",
        num_slots=nodes,
        num_standby=standby,
        checkpoint_dir=ROOT,
        checkpoint_every_s=every_s,
        checkpoint_keep=keep,
    )
    made = Cluster(spec, Policy(**policy))  # type: ignore[arg-type]
    made.start()
    return made


def of(kind: type, decided: list[Action]) -> list:
    return [action for action in decided if isinstance(action, kind)]


def steps(job: Cluster) -> list[int]:
    return [each.step for each in job.state.checkpoints]


def committing(job: Cluster) -> int:
    """Train until a step is being committed, which nobody answers."""
    job.held_back.add("CommitCheckpoint")
    for _ in range(500):
        if of(actions.CommitCheckpoint, job.train(1)):
            assert job.state.persisting is not None
            return job.state.persisting.step
    raise AssertionError("no step is ever committed")


def committed(job: Cluster, step: int, *, node: str = "n0", dropped: tuple[int, ...] = ()) -> list[Action]:
    found = Checkpoint(step=step, path=f"{ROOT}/step-{step}", world_size=2, at=job.clock.now)
    return job.feed(
        events.CheckpointCommitted(at=job.clock.now, node=node, step=step, checkpoint=found, dropped=dropped)
    )


def stop(job: Cluster) -> list[Action]:
    return job.feed(events.StopRequested(at=job.clock.now, why="SIGTERM", signal=15))


def test_a_commit_has_the_time_that_agents_give_it():
    job = cluster()
    committing(job)
    begun = job.clock.now
    assert job.state.timers[LIMIT_TIMER] == pytest.approx(begun + COMMIT_LIMIT_S + SLACK_S)
    refused = of(actions.Refused, job.wait(COMMIT_LIMIT_S - 1))
    assert not any("no answer" in each.why for each in refused)
    assert job.state.persisting is not None
    refused = of(actions.Refused, job.wait(SLACK_S + 2))
    assert any(f"no answer of n0 within {COMMIT_LIMIT_S:.0f} s" in each.why for each in refused)


def test_a_commit_that_comes_after_its_limit_is_taken_and_what_it_dropped_is_gone():
    job = cluster(keep=1)
    job.train(30)
    (before,) = steps(job)[-1:]
    step = committing(job)
    job.wait(COMMIT_LIMIT_S + SLACK_S + 1)
    assert job.state.persisting is None or job.state.persisting.step != step
    committed(job, step, dropped=tuple(steps(job)))
    assert steps(job) == [step]
    newest = holdings.newest_checkpoint(job.state)
    assert newest is not None
    assert newest.step == step > before


def test_a_late_commit_does_not_end_the_wait_for_the_step_after_it():
    job = cluster(every_s=400.0)
    first = committing(job)
    job.wait(COMMIT_LIMIT_S + SLACK_S + 1)
    second = committing(job)
    committed(job, first)
    assert steps(job) == [first]
    assert job.state.persisting is not None
    assert job.state.persisting.step == second
    committed(job, second)
    assert steps(job) == [first, second]
    assert job.state.persisting is None


def test_a_commit_that_is_late_by_a_whole_step_takes_no_newer_one_away():
    job = cluster(every_s=400.0)
    first = committing(job)
    job.wait(COMMIT_LIMIT_S + SLACK_S + 1)
    second = committing(job)
    committed(job, second)
    committed(job, first)
    assert steps(job) == [first, second]


def test_a_commit_by_a_node_that_was_lost_meanwhile_is_taken():
    job = cluster(standby=1)
    step = committing(job)
    job.lose_node("n0")
    committed(job, step)
    assert steps(job) == [step]


def test_a_late_commit_of_what_a_corruption_may_be_in_is_never_restored():
    job = cluster(standby=1)
    job.train(5)
    job.agree()
    step = committing(job)
    job.anomaly("ES-N05", 1)
    job.train(1)
    job.wait(COMMIT_LIMIT_S + SLACK_S + 1)
    struck = of(actions.StrikeCheckpoint, committed(job, step))
    assert steps(job) == []
    assert [(each.root, each.step) for each in struck] == [(ROOT, step)]


def test_checkpoints_that_a_corruption_may_be_in_are_struck_for_later_runs_too():
    job = cluster(standby=1)
    job.train(5)
    job.agree()
    job.train(10)
    (bad,) = steps(job)
    struck = of(actions.StrikeCheckpoint, job.anomaly("ES-N05", 1))
    assert [(each.node, each.root, each.step) for each in struck] == [("n0", ROOT, bad)]
    assert "replicas differed" in struck[0].why
    job.held_back.add("StrikeCheckpoint")
    assert [each.step for each in of(actions.StrikeCheckpoint, job.restart_controller())] == [bad]
    while job.state.checkpoints[-1].at <= struck_at(job):
        job.train(1)
    assert not of(actions.StrikeCheckpoint, job.restart_controller()), "what is there now is another one"


def struck_at(job: Cluster) -> float:
    return max(each.at for each in job.state.struck)


def test_the_first_request_to_stop_does_not_skip_the_last_save_and_the_second_does():
    job = cluster()
    job.train(7)
    job.held_back.add("PersistSnapshot")
    job.succeed()
    assert job.state.phase is Phase.SAVING
    assert job.state.timers[LIMIT_TIMER] == pytest.approx(job.clock.now + job.policy.last_save_s + SLACK_S)
    assert not of(actions.Finish, stop(job))
    assert job.state.timers[LIMIT_TIMER] == pytest.approx(job.clock.now + job.policy.notice_s)
    assert [each.outcome for each in of(actions.Finish, stop(job))] == ["succeeded"]


def test_the_notice_holds_for_a_save_that_was_under_way():
    job = cluster()
    job.train(7)
    job.held_back.add("CommitCheckpoint")
    job.succeed()
    stop(job)
    assert not of(actions.Finish, job.wait(job.policy.notice_s - 1))
    assert of(actions.Finish, job.wait(2.0))


def test_the_notice_holds_where_the_run_was_giving_up():
    job = cluster(max_restarts=0)
    job.train(7)
    job.held_back |= {"StopWorkers", "PersistSnapshot"}
    job.kill(0)
    job.feed(
        *(
            events.WorkersStopped(at=job.clock.now, node=node, generation=0, exits=(), held=job.memory.held(node, [r]))
            for r, node in enumerate(("n0", "n1"))
        )
    )
    assert job.state.phase is Phase.SAVING
    stop(job)
    assert job.state.timers[LIMIT_TIMER] == pytest.approx(job.clock.now + job.policy.notice_s)
    assert [each.outcome for each in of(actions.Finish, job.wait(job.policy.notice_s + 1))] == ["gave-up"]


def test_who_asks_to_stop_while_the_ranks_are_being_stopped_says_by_when():
    job = cluster()
    job.train(7)
    job.held_back.add("StopWorkers")
    job.feed(events.CheckpointsFound(at=job.clock.now, why="permission denied"))
    assert job.state.phase is Phase.STOPPING
    stop(job)
    assert job.state.ending is not None
    assert (job.state.ending.outcome, job.state.ending.save_by) == ("gave-up", job.clock.now + job.policy.notice_s)


def test_the_last_save_does_not_hang_on_the_interval():
    asked = of(actions.PersistSnapshot, last_save(cluster(every_s=86_400.0)))
    assert {each.limit_s for each in asked} == {Policy().last_save_s}


def last_save(job: Cluster) -> list[Action]:
    job.train(7)
    job.held_back.add("PersistSnapshot")
    return job.succeed()


def part(job: Cluster, node: str) -> list[Action]:
    assert job.state.persisting is not None
    step, generation = job.state.persisting.step, job.state.generation
    return job.feed(events.SnapshotPersisted(at=job.clock.now, node=node, generation=generation, step=step))


def test_another_node_commits_where_the_one_that_should_is_lost_after_its_part():
    job = cluster()
    last_save(job)
    part(job, "n0")
    assert not of(actions.Finish, job.lose_node("n0"))
    decided = part(job, "n1")
    assert [each.node for each in of(actions.CommitCheckpoint, decided)] == ["n1"]
    assert [each.outcome for each in of(actions.Finish, decided)] == ["succeeded"]
    assert steps(job) == [6]
