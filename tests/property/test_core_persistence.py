"""Whatever happens while steps go to the persistent tier: one at a time, no step that somebody lacks, the fold of the
journal is the state, and a run that is told to end ends within its notice.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.core.restore.holdings import newest_checkpoint
from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.journal.fold import fold
from everstep.model import actions, events
from everstep.model.record import Header
from everstep.model.spec import RunSpec
from everstep.testing.cluster import Cluster

EVERY_S = 5.0

MOVES = (
    st.tuples(st.just("train"), st.integers(1, 8))
    | st.tuples(st.just("wait"), st.sampled_from((0.5, 3.0, 30.0, 90.0)))
    | st.tuples(st.just("kill"), st.integers(0, 3))
    | st.tuples(st.just("lose"), st.integers(0, 5))
    | st.tuples(st.just("disk"), st.sampled_from(("", "disk full")))
    | st.tuples(st.just("hold"), st.sampled_from(("PersistSnapshot", "CommitCheckpoint", "")))
    | st.tuples(st.just("agree"), st.none())
    | st.tuples(st.just("differ"), st.none() | st.integers(0, 40))
    | st.tuples(st.just("reopen"), st.none())
    | st.tuples(st.just("again"), st.none())
    | st.tuples(st.just("answer"), st.integers(0, 60))
)


def play(job: Cluster, move: str, value: object) -> None:
    match move, value:
        case "train", int(steps):
            job.train(steps)
        case "wait", float(duration_s):
            job.wait(duration_s)
        case "kill", int(rank) if job.state.workers.get(rank) is not None:
            job.kill(rank)
        case "lose", int(node) if f"n{node}" in job.state.members:
            job.lose_node(f"n{node}")
        case "disk", str(why):
            job.tier.why = why
        case "hold", str(kind):
            job.held_back = {kind} if kind else set()
        case "agree", None if job.state.phase is Phase.RUNNING:
            job.agree()
        case "differ", agreed:
            job.anomaly("ES-N05", 1, agreed=agreed if isinstance(agreed, int) else None)
        case "reopen", None:
            job.feed(events.RunReopened(at=job.clock.now, attempt=job.state.attempt + 1))
            job.find_checkpoints()
        case "again", None:
            job.restart_controller()
        case "answer", int(step):  # of whatever, from whom it may be
            job.feed(
                *(
                    events.SnapshotPersisted(at=job.clock.now, node=node, generation=job.state.generation, step=step)
                    for node in job.state.active_nodes
                ),
                *(events.CheckpointCommitted(at=job.clock.now, node=n, step=step, why="?") for n in ("n0", "n9")),
            )


def newest_usable(job: Cluster) -> int:
    """Of those in the persistent tier that may be restored; what replicas that differ wrote is not one."""
    newest = newest_checkpoint(job.state)
    return -1 if newest is None else newest.step


def check(job: Cluster) -> None:
    kept = fold(Header(run="r1", everstep_version="test", policy={}), job.records).kept
    assert kept.trusted_step == job.state.trusted_step, "the view shows what the brain has"
    assert kept.is_tier_known == job.state.checkpoints_known
    steps = [checkpoint.step for checkpoint in job.state.checkpoints]
    assert steps == sorted(set(steps))
    persisting = job.state.persisting
    if persisting is not None and persisting.generation == job.state.generation:
        assert set(persisting.missing) | {persisting.committer} <= {
            *job.state.active_nodes,
            *(member.node for member in job.state.members.values() if member.role.value == "out"),
        }


@settings(max_examples=60, deadline=None)
@given(st.lists(MOVES, max_size=14), st.sampled_from((2, 15)), st.booleans())
def test_every_history_ends_in_time_and_loses_no_checkpoint(moves, signal, twice):
    spec = RunSpec(
        program="train.py",
        num_slots=2,
        nproc_per_node=2,
        num_standby=1,
        checkpoint_dir="/ckpt",
        checkpoint_every_s=EVERY_S,
    )
    job = Cluster(spec, Policy(max_restarts=3), copies_lag=1)
    job.start()
    for move, value in moves:
        play(job, move, value)
        check(job)
    best = newest_usable(job)
    stop = events.StopRequested(at=job.clock.now, why="SIG", signal=signal)
    decided = job.feed(stop)
    if twice:
        decided = decided + job.feed(stop)
        assert job.state.is_over
    decided = decided + job.wait(job.policy.notice_s + 1.0)
    assert job.state.is_over, "within the notice"
    lasts = [action.step for action in decided if isinstance(action, actions.PersistSnapshot)]
    assert len(set(lasts)) <= 1, "one last step"
    assert newest_usable(job) >= best
    check(job)
