"""A node of the run that speaks of ranks which another node runs: nothing that it says of them counts."""

import pytest

from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.core.step import step
from everstep.model import events
from everstep.model.facts import Exit, RankAccount, Started
from everstep.model.spec import RunSpec
from everstep.testing.cluster import Cluster


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(RunSpec(program="train.py", num_slots=2, nproc_per_node=2, checkpoint_dir="/disk"))
    made.start()
    made.train(5)
    return made


def lies(at: float) -> list[events.Event]:
    """Of n1, about rank 0 of n0."""
    account = RankAccount(rank=0, spawned_at=at, last_step=10_000, published_step=10_000)
    told = {"at": at, "node": "n1", "generation": 0}
    return [
        events.ProgressReported(**told, accounts=(account,)),
        events.MarksReported(**told, accounts=(account,)),
        events.WorkersStarted(**told, started=(Started(rank=0, pid=1, how="fresh", at=at),)),
        events.WorkerExited(**told, exit=Exit(rank=0, at=at, signal=11)),
        events.RestoreFailed(**told, rank=0, step=3, source="memory", where="n0", why="a lie"),
    ]


@pytest.mark.parametrize("number", range(len(lies(0.0))))
def test_it_changes_nothing(cluster: Cluster, number: int):
    before = cluster.state
    done = cluster.feed(lies(cluster.clock.now)[number])
    assert done == []
    assert cluster.state.workers == before.workers
    assert cluster.state.phase is Phase.RUNNING
    assert cluster.state.incident is None
    assert cluster.state.best_step == before.best_step


def test_neither_the_end_of_its_own_nor_the_stop_says_anything_of_others(cluster: Cluster):
    now = cluster.clock.now
    account = RankAccount(rank=0, spawned_at=now, last_step=10_000)
    ended = Exit(rank=2, at=now, signal=9)
    exited = events.WorkerExited(at=now, node="n1", generation=0, exit=ended, account=account)
    state, _ = step(cluster.state, exited, Policy())
    assert state.workers[2].account.rank == 2
    assert state.phase is Phase.STOPPING
    lie = Exit(rank=1, at=now, signal=11)
    stopped = events.WorkersStopped(at=now, node="n1", generation=0, accounts=(account,), exits=(lie,))
    state, _ = step(state, stopped, Policy())
    assert state.workers[1].exit is None
    assert state.workers[0].account.last_step < 10_000
