"""What is restored, from where, and what is said of it: cases that a transcript does not show."""

import msgspec
import pytest

from everstep.core.invariants import InvariantError, check_step
from everstep.core.restore import holdings, trust
from everstep.core.state.policy import Policy
from everstep.core.state.schema import Member, Role, State
from everstep.model import actions, events
from everstep.model.facts import Checkpoint, Held, RankAccount
from everstep.model.spec import RunSpec
from everstep.testing import Cluster


def state(**fields: object) -> State:
    """Two ranks, one on each of two nodes, and what `fields` say."""
    members = {
        name: Member(node=name, host=name, pid=1, role=Role.ACTIVE, slot=slot, endpoint=f"{name}:1")
        for slot, name in enumerate(("n0", "n1"))
    }
    spec = RunSpec(program="train.py", num_slots=2)
    made = State(run="r", spec=spec, members=members, slots=("n0", "n1"), generation=2)
    return msgspec.structs.replace(made, **fields)


def held(rank: int, *steps: int, by: int | None = None) -> Held:
    return Held(rank=rank, steps=steps, generations=() if by is None else (by,) * len(steps))


def checkpoint(step: int, *, is_trusted: bool = False, at: float = 0.0) -> Checkpoint:
    return Checkpoint(step=step, path=f"/c/{step}", world_size=2, at=at, is_trusted=is_trusted)


def started(cluster: Cluster) -> list[actions.StartWorkers]:
    return [action for action in cluster.actions if isinstance(action, actions.StartWorkers)]


def cluster(num_ranks: int = 4, num_nodes: int = 2, **options: int) -> Cluster:
    spec = RunSpec(program="train.py", num_slots=num_nodes, nproc_per_node=num_ranks // num_nodes, num_standby=1)
    made = Cluster(spec, Policy(), copies_lag=options.get("copies_lag"))
    made.start()
    return made


@pytest.mark.parametrize(("kept_step", "lost"), [(20, 0), (19, 0), (18, 2)])
def test_steps_since_the_snapshot_that_outlived_an_agent_are_lost_too(kept_step: int, lost: int):
    """Large states have a snapshot every few steps only. What the others had done since was not counted."""
    made = cluster()
    made.train(1)
    made.unheard.add("n1")
    made.train(20)
    made.memory.lose("n1", keep=False)
    made.memory.kept = {rank: {kept_step: 0} for rank in (2, 3)}
    kept = (held(2, kept_step, by=0), held(3, kept_step, by=0))
    made.feed(events.NodeLost(at=made.clock.now, node="n1", reason="its process was killed", signal=9, kept=kept))
    assert started(made)[-1].resume_step == kept_step
    made.unheard.clear()
    (closed,) = [each for each in made.train(1) if isinstance(each, actions.IncidentClosed)]
    assert closed.lost_steps == lost


def test_each_rank_takes_what_is_nearest():
    copies = {"n0": (held(1, 4, 5, by=0),), "n1": (held(0, 5, by=0),)}
    found = holdings.newest(state(held={0: held(0, 4, 5, by=0), 1: held(1, 3, by=0)}, copies=copies))
    assert found is not None
    assert found.step == 5
    assert [(fetch.rank, fetch.node, fetch.endpoint) for fetch in found.fetch] == [(1, "n0", "n0:1")]


def test_journals_from_before_generations_were_told_count():
    before = state(held={0: held(0, 4), 1: held(1, 4)}, resumes={0: None, 1: 3, 2: None})
    assert holdings.newest(before) == holdings.Restore(step=4)


@pytest.mark.parametrize(
    ("resumes", "expected"),
    [
        ({0: None, 1: 9}, 7),
        ({0: None, 1: 7}, 7),
        ({0: None, 1: 6}, None),
        ({0: None, 1: 6, 2: 8}, None),  # gone back and come by again: another history
        ({0: None, 1: None}, None),
    ],
)
def test_a_step_counts_until_somebody_went_back_before_it(resumes: dict[int, int | None], expected: int | None):
    found = holdings.newest(state(held={0: held(0, 7, by=0), 1: held(1, 7, by=0)}, resumes=resumes))
    assert (found.step if found is not None else None) == expected


def test_of_two_snapshots_of_a_step_nobody_could_say_which_one_would_come():
    mixed = Held(rank=1, steps=(5, 7, 7), generations=(0, 0, 1))
    other = Held(rank=0, steps=(5, 7), generations=(0, 1))
    assert holdings.newest(state(held={0: other, 1: mixed}, resumes={0: None, 1: 6})) == holdings.Restore(step=5)


def test_nobody_fetches_from_a_node_without_an_address():
    alone = state(held={0: held(0, 5)}, copies={"n0": (held(1, 5),)})
    silent = msgspec.structs.replace(alone.members["n0"], endpoint="")
    assert holdings.newest(alone) is not None
    assert holdings.newest(msgspec.structs.replace(alone, members={**alone.members, "n0": silent})) is None


def test_only_a_newer_checkpoint_goes_before_memory():
    memory = {"held": {0: held(0, 5), 1: held(1, 5)}}
    assert holdings.newest(state(**memory, checkpoints=(checkpoint(5),))) == holdings.Restore(step=5)
    newer = holdings.newest(state(**memory, checkpoints=(checkpoint(3), checkpoint(6))))
    assert newer == holdings.Restore(step=6, path="/c/6")


def test_after_a_corruption_a_checkpoint_counts_that_passed_a_check_or_is_old_enough():
    found = state(trusted_step=4, checkpoints=(checkpoint(3), checkpoint(8, is_trusted=True), checkpoint(9)))
    assert holdings.newest(found, only_trusted=True) == holdings.Restore(step=8, path="/c/8")
    assert holdings.newest(msgspec.structs.replace(found, checkpoints=(checkpoint(3),)), only_trusted=True) is not None
    assert holdings.newest(msgspec.structs.replace(found, checkpoints=(checkpoint(9),)), only_trusted=True) is None


def test_a_checkpoint_that_was_written_again_is_another_one():
    run = cluster()
    run.train(3)
    run.checkpoint()
    run.memory.damaged.add("/ckpt/step-2")
    run.lose_node("n1")
    assert run.state.is_over, "it was the only one"

    run = cluster()
    run.train(3)
    run.checkpoint()
    run.train(3)
    run.checkpoint()
    run.memory.damaged.add("/ckpt/step-5")
    run.lose_node("n1")
    run.train(3)  # from step 2, and so past step 5 again
    run.checkpoint()
    run.lose_node("n2")
    assert [start.restore_path for start in started(run)] == ["/ckpt/step-5", "/ckpt/step-5"]


def test_a_run_that_ends_because_nothing_is_left_says_what_was_wrong_with_each():
    run = cluster()
    run.train(3)
    run.checkpoint()
    run.memory.damaged.add("/ckpt/step-2")
    run.lose_node("n1")
    finish = run.actions[-1]
    assert isinstance(finish, actions.Finish)
    assert (finish.outcome, finish.exit_code) == ("gave-up", 10)
    assert "/ckpt/step-2: sums do not match" in finish.why


def test_what_all_ranks_find_of_one_checkpoint_is_struck_once():
    run = cluster()
    run.train(3)
    run.checkpoint()
    run.memory.damaged.add("/ckpt/step-2")
    run.lose_node("n1")
    assert len(run.state.struck) == 1


def test_a_failed_restore_of_an_older_generation_is_fenced_off():
    run = cluster()
    run.train(3)
    run.kill(0)
    before = run.state
    late = events.RestoreFailed(
        at=run.clock.now, node="n0", generation=0, rank=0, step=2, source="memory", where="", why="late"
    )
    run.feed(late)
    assert (run.state.struck, run.state.stale) == ((), before.stale + 1)


def test_agreement_counts_in_its_own_generation_and_grows():
    run = cluster()
    run.train(5)
    run.agree(3)
    run.agree(2)
    assert run.state.trusted_step == 3
    run.kill(0)
    run.train(4)
    run.feed(events.ReplicasAgreed(at=run.clock.now, generation=0, step=7))
    assert run.state.trusted_step == 3
    run.agree(6)
    assert [action.step for action in run.actions if isinstance(action, actions.TrustStep)] == [6, 6]


def test_a_node_that_comes_new_is_told_what_is_trusted():
    run = cluster(copies_lag=0)
    run.train(5)
    run.agree()
    run.train(1)
    run.lose_node("n1")
    told = [action for action in run.actions if isinstance(action, actions.TrustStep)]
    assert {(action.node, action.generation, action.step) for action in told} == {("n0", 1, 4), ("n2", 1, 4)}


def test_trust_does_not_reach_beyond_the_step_that_the_job_went_back_to():
    run = cluster(copies_lag=2)
    run.train(6)
    run.agree()
    run.lose_node("n1")
    assert run.state.formation is not None
    assert (run.state.formation.resume_step, run.state.trusted_step) == (3, 3)


def test_a_program_without_snapshots_is_not_stopped_for_a_corruption():
    run = Cluster(RunSpec(program="train.py", nproc_per_node=4), snapshots=False)
    run.start()
    run.train(5)
    run.agree()
    decided = run.anomaly("ES-N04", 2)
    assert not [action for action in decided if isinstance(action, actions.StopWorkers)]
    (concluded,) = [action for action in decided if isinstance(action, actions.Concluded)]
    assert "keeps no snapshots" in concluded.why


def test_what_may_be_wrong_is_not_saved_before_the_stop():
    run = cluster()
    run.train(5)
    run.agree()
    run.held_back.add("StopWorkers")
    run.anomaly("ES-N05", 1)
    assert {stop.save_s for stop in run.actions if isinstance(stop, actions.StopWorkers)} == {0.0}
    assert {stop.save_s for stop in run.restart_controller() if isinstance(stop, actions.StopWorkers)} == {0.0}


def test_ranks_that_hang_save_only_what_is_not_complete():
    run = cluster()
    run.train(5)
    run.hang(1)
    assert {stop.save_s for stop in run.actions if isinstance(stop, actions.StopWorkers)} == {0.0}
    run.train(2)
    ahead = run.state.workers[1].account
    assert ahead is not None
    behind = msgspec.structs.replace(ahead, published_step=5)
    run.feed(events.MarksReported(at=run.clock.now, node="n0", generation=1, accounts=(behind,)))
    run.hang(1)
    stops = [stop for stop in run.actions if isinstance(stop, actions.StopWorkers)]
    assert {stop.save_s for stop in stops} == {run.policy.save_s}


def test_the_invariants_notice_a_start_that_cannot_be():
    run = cluster()
    run.train(5)
    before = run.state
    run.kill(0)
    after = run.state
    assert after.formation is not None
    check_step(before, after)
    for wrong in (
        msgspec.structs.replace(after, held={}),
        msgspec.structs.replace(after, formation=msgspec.structs.replace(after.formation, restore_path="/c/1")),
        msgspec.structs.replace(after, formation=msgspec.structs.replace(after.formation, resume_step=77)),
    ):
        with pytest.raises(InvariantError):
            check_step(before, wrong)


def test_a_checkpoint_that_was_under_way_when_the_job_went_back_is_never_restored():
    spec = RunSpec(program="train.py", num_slots=2, checkpoint_dir="/ckpt", checkpoint_every_s=10.0, num_standby=1)
    run = Cluster(spec)
    run.start()
    run.feed(events.CheckpointsFound(at=run.clock.now))
    run.train(5)
    run.agree()
    run.held_back.add("CommitCheckpoint")
    run.train(20)
    persisting = run.state.persisting
    assert persisting is not None
    assert not persisting.missing, "all parts are there, and it is being committed"
    run.anomaly("ES-N05", 1)
    assert run.state.formation is not None
    assert run.state.formation.resume_step == 4
    late = checkpoint(persisting.step, at=run.clock.now)
    run.feed(events.CheckpointCommitted(at=run.clock.now, node="n0", step=persisting.step, checkpoint=late))
    assert holdings.newest_checkpoint(run.state) is None
    run.feed(events.CheckpointsFound(at=run.clock.now + 1, checkpoints=(late,)))
    assert holdings.newest_checkpoint(run.state) is None, "also when another attempt finds it"


def test_a_rank_that_told_of_its_first_step_only_may_keep_snapshots():
    """Progress comes every two seconds; a corruption may be found before. Later on, none published means none kept."""
    first = RankAccount(rank=0, spawned_at=1.0, first_step=0, last_step=0, counts_own_steps=True)
    assert trust._may_keep(first)
    assert not trust._may_keep(msgspec.structs.replace(first, counts_own_steps=False))
    assert not trust._may_keep(msgspec.structs.replace(first, last_step=20))
    assert trust._may_keep(msgspec.structs.replace(first, last_step=20, published_step=19))
    assert not trust._may_keep(None)
