"""What a node that counts as lost can still change: nothing, whatever it says, of its own generation or a later one."""

import msgspec
import pytest

from everstep.core.reissue import reissue
from everstep.core.state.schema import Role
from everstep.model import actions, events
from everstep.model.facts import Exit, RankAccount, Started
from everstep.model.spec import RunSpec
from everstep.testing.cluster import Cluster


@pytest.fixture
def cluster() -> Cluster:
    """n1 was cut off at generation 0, and its slot belongs to the standby of generation 1."""
    spec = RunSpec(program="train.py", num_slots=2, nproc_per_node=1, num_standby=1, checkpoint_dir="/disk")
    made = Cluster(spec)
    made.start()
    made.train(5)
    made.silence("n1")
    made.train(1)
    assert made.state.members["n1"].role is Role.OUT
    assert made.state.generation == 1
    return made


def said_by_the_lost(at: float, generation: int) -> list[events.Event]:
    account = RankAccount(rank=1, spawned_at=at, last_step=10_000, published_step=10_000)
    told = {"at": at, "node": "n1", "generation": generation}
    return [
        events.ProgressReported(**told, accounts=(account,)),
        events.MarksReported(**told, accounts=(account,)),
        events.WorkersStarted(**told, started=(Started(rank=1, pid=1, how="fresh", at=at),)),
        events.WorkersFailedToStart(**told, why="cut off"),
        events.WorkerExited(**told, exit=Exit(rank=1, at=at, code=1)),
        events.WorkersStopped(**told, accounts=(account,)),
        events.SnapshotPersisted(**told, step=10_000),
        events.RestoreFailed(**told, rank=1, step=3, source="memory", where="n1", why="cut off"),
        events.EvidenceCollected(**told, incident="i1", gathered=(), took_s=0.1),
    ]


@pytest.mark.parametrize("generation", [0, 1])
@pytest.mark.parametrize("number", range(len(said_by_the_lost(0.0, 0))))
def test_nothing_that_it_reports_counts(cluster: Cluster, generation: int, number: int):
    before = cluster.state
    done = cluster.feed(said_by_the_lost(cluster.clock.now, generation)[number])
    assert done == []
    assert msgspec.structs.replace(cluster.state, stale=0) == msgspec.structs.replace(before, stale=0)
    assert cluster.state.stale == before.stale + 1


def test_it_is_told_that_it_is_out_when_it_comes_back(cluster: Cluster):
    slots = cluster.state.slots
    done = cluster.feed(
        events.NodeJoined(at=cluster.clock.now, node="n1", host="h", pid=1, generation=0, stopped=False)
    )
    assert [type(action) for action in done] == [actions.Refused, actions.ReleaseNode]
    assert cluster.state.slots == slots


def doubt(cluster: Cluster, node: str) -> events.NodeInDoubt:
    return events.NodeInDoubt(at=cluster.clock.now, node=node, number=7, silent_s=8.1)


def test_one_that_asks_too_late_is_told_that_it_is_out(cluster: Cluster):
    before = cluster.state
    done = cluster.feed(doubt(cluster, "n1"))
    assert [type(action) for action in done] == [actions.Refused, actions.ReleaseNode]
    assert cluster.state == before


def test_one_whose_end_is_decided_may_not_go_on_although_its_slot_is_still_its_own():
    spec = RunSpec(program="train.py", num_slots=2, nproc_per_node=1, num_standby=1)
    cluster = Cluster(spec)
    cluster.held_back |= {"EvictNode"}  # the engine does not reach it
    cluster.start()
    cluster.train(2)
    cluster.silence("n1", 61.0)
    (answer,) = cluster.feed(doubt(cluster, "n1"))
    assert isinstance(answer, actions.SettleDoubt)
    assert not answer.may_go_on
    assert "nothing was heard of it for 61.0 s" in answer.why


def test_one_that_may_only_be_late_gets_its_answer_when_the_engine_has_looked():
    spec = RunSpec(program="train.py", num_slots=2, nproc_per_node=1, num_standby=1)
    cluster = Cluster(spec)
    cluster.held_back |= {"EvictNode"}
    cluster.start()
    cluster.train(2)
    cluster.silence("n1")
    assert cluster.feed(doubt(cluster, "n1")) == []
    assert cluster.feed(events.NodeSpared(at=cluster.clock.now, node="n1", why="its process lives")) == []
    (answer,) = cluster.feed(doubt(cluster, "n1"))
    assert answer.may_go_on


def test_one_that_was_silent_is_still_only_silent_when_its_end_is_asked_for_again():
    """By a controller that took over: nothing is held against its machine."""
    spec = RunSpec(program="train.py", num_slots=2, nproc_per_node=1, num_standby=1)
    cluster = Cluster(spec)
    cluster.held_back |= {"EvictNode"}
    cluster.start()
    cluster.train(2)
    cluster.silence("n1")
    again = [action for action in reissue(cluster.state, cluster.policy) if isinstance(action, actions.EvictNode)]
    assert [(action.node, action.is_silent) for action in again] == [("n1", True)]


@pytest.mark.parametrize("node", ["n0", "n2", "unknown"])
def test_one_that_nobody_missed_may_go_on(cluster: Cluster, node: str):
    before = cluster.state
    (answer,) = cluster.feed(doubt(cluster, node))
    assert isinstance(answer, actions.SettleDoubt)
    assert (answer.node, answer.number, answer.may_go_on) == (node, 7, True)
    assert cluster.state == before, "an answer decides nothing"


def test_its_loss_is_not_told_twice(cluster: Cluster):
    before = cluster.state
    cluster.feed(events.NodeLost(at=cluster.clock.now, node="n1", reason="its agent ended"))
    assert cluster.state == before


def test_only_whoever_took_its_slot_is_replaced_in_a_hurry(cluster: Cluster):
    asked = [action for action in cluster.silence("n0") if isinstance(action, actions.AcquireNode)]
    assert [action.is_urgent for action in asked] == [False], "a standby is there for the slot"
