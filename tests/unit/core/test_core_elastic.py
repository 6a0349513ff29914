"""`--nnodes MIN:MAX`, whatever comes and goes: never below MIN, never above MAX, the same from the journal."""

import random
from types import SimpleNamespace

import pytest

from everstep.core.run import stopping
from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.core.state.schema import Role
from everstep.journal.fold import fold
from everstep.journal.history import history_of
from everstep.model import actions, events
from everstep.model.facts import Exit, Held, RankAccount
from everstep.model.record import Header
from everstep.model.spec import Mode, RunSpec
from everstep.testing.cluster import Cluster

POLICY = Policy(shrink_after_s=5.0, grow_after_s=4.0, node_timeout_s=600.0, max_restarts=1000, backoff_s=0.0)


def started(least: int = 2, most: int = 4, capacity: int = 4, **more: object) -> Cluster:
    spec = RunSpec(program="train.py", num_slots=most, min_slots=least, max_slots=most, nproc_per_node=2, **more)
    cluster = Cluster(spec, POLICY, copies_lag=0, capacity=capacity)
    cluster.start()
    return cluster


def sizes(cluster: Cluster) -> list[int]:
    found = (a for record in cluster.records for a in record.actions)
    return [a.num_slots for a in found if isinstance(a, actions.Resized)]


@pytest.mark.parametrize("seed", range(12))
def test_whatever_comes_and_goes(seed):
    """The cluster checks the invariants, sizes among them, after each event; here: steps, and the journal's fold."""
    draw = random.Random(seed)
    cluster, newest = started(capacity=draw.randint(2, 6)), -1
    for _ in range(30):
        match draw.randint(0, 5):
            case 0 if cluster.state.active_nodes:
                cluster.lose_node(draw.choice(cluster.state.active_nodes))
            case 1:
                cluster.have(draw.randint(1, 6))
            case 2 if cluster.state.phase is Phase.RUNNING:
                cluster.kill(draw.choice(list(cluster.state.workers)))
            case 3:
                cluster.restart_controller()
            case _:
                cluster.train(draw.randint(1, 6))
        if cluster.state.is_over:
            break
        if cluster.state.phase is Phase.RUNNING and cluster.state.best_step is not None:
            assert cluster.state.best_step >= newest
            newest = cluster.state.best_step
    for resumed, best in cluster.chosen:
        assert resumed == best, "the newest step that all can have, whatever number of ranks took it"
    cluster.restart_controller()


def test_a_growth_loses_no_step_and_opens_no_incident():
    cluster = started(capacity=2)
    cluster.wait(6)
    cluster.train(7)
    cluster.have(3)
    cluster.train(6)
    assert sizes(cluster) == [2, 3]
    (step, _) = cluster.chosen[-1]
    assert step is not None
    assert step >= 9, "the last step of the generation before"
    assert cluster.state.num_incidents == 0
    assert cluster.state.restarts == ()


def test_a_growth_ends_all_ranks_after_one_step_that_none_has_done_yet():
    cluster = started(capacity=2)
    cluster.wait(6)
    cluster.train(7)
    cluster.have(3)
    cluster.train(6)
    (decided,) = [record for record in cluster.records if cluster.state.spec and _grows(record)]
    stops = [action for action in decided.actions if isinstance(action, actions.StopWorkers)]
    (step,) = {stop.after_step for stop in stops}
    known = [fact.last_step for each in cluster.records if each.seq < decided.seq for fact in _accounts(each)]
    assert len(stops) == 2
    assert step is not None
    assert step > max(last for last in known if last is not None)
    assert all(stop.after_s > 0.0 for stop in stops)


@pytest.mark.parametrize("lacks", ["steps", "snapshots", "account", "rank", "time", ""])
def test_ranks_that_cannot_be_waited_for_end_at_once(lacks):
    """They count no steps, keep no snapshots, have said nothing yet, have ended, or a step takes minutes."""
    step_s = 100.0 if lacks == "time" else 1.0
    account = RankAccount(
        rank=0,
        spawned_at=0.0,
        first_step=0,
        first_step_at=10.0,
        last_step=10,
        last_step_at=10.0 + 10 * step_s,
        published_step=None if lacks == "snapshots" else 9,
        counts_own_steps=lacks != "steps",
    )
    rank_exit = Exit(rank=0, at=20.0, code=0) if lacks == "rank" else None
    workers = [
        SimpleNamespace(account=account, exit=None),
        SimpleNamespace(account=None if lacks == "account" else account, exit=rank_exit),
    ]
    turn = SimpleNamespace(at=20.5, state=SimpleNamespace(workers=dict(enumerate(workers))))
    step, after_s = stopping.boundary(turn)
    assert (step is None) == bool(lacks)
    assert (after_s == 0.0) == bool(lacks)
    assert step is None or step > 10


@pytest.mark.parametrize("what", ["a rank", "a node", "a wish to end"])
def test_what_comes_before_the_step_ends_all_ranks_at_once(what):
    cluster = started(capacity=2)
    cluster.wait(6)
    cluster.train(7)
    cluster.have(3)
    cluster.held_back.add("StopWorkers")
    cluster.train(6)
    assert cluster.state.phase is Phase.STOPPING
    assert cluster.state.growing
    if what == "a rank":
        cluster.kill(0)
    elif what == "a node":
        cluster.lose_node(cluster.state.active_nodes[1])
    else:
        cluster.feed(events.StopRequested(at=cluster.clock.now, why="SIGINT", signal=2))
    stops = [a for record in cluster.records for a in record.actions if isinstance(a, actions.StopWorkers)]
    at_once = {stop.node for stop in stops if stop.generation == cluster.state.generation and stop.after_step is None}
    assert at_once == set(cluster.state.waiting)
    assert at_once


def _grows(record):
    return any(isinstance(a, actions.StopWorkers) and "node waits" in a.why for a in record.actions)


def _accounts(record):
    return getattr(record.event, "accounts", ())


def test_nodes_that_come_together_are_taken_in_together():
    cluster = started(capacity=2)
    cluster.wait(6)
    cluster.train(3)
    cluster.have(3)
    cluster.train(2)
    cluster.have(4)
    cluster.train(8)
    assert sizes(cluster) == [2, 4]


@pytest.mark.parametrize("mode", [Mode.ADVISE, Mode.OBSERVE])
def test_nobody_is_taken_in_where_everstep_may_not_act(mode):
    cluster = started(capacity=2, mode=mode)
    cluster.wait(6)
    cluster.have(4)
    cluster.train(60)
    assert sizes(cluster) == [2]


def test_a_program_that_cannot_be_spread_goes_back_to_its_size():
    """The rank says so in the generation that was to be smaller, and ends."""
    cluster = started(least=1, most=2, capacity=2)
    cluster.train(3)
    cluster.have(1)
    cluster.lose_node("n1")
    cluster.wait(6)
    cluster.fix_size("model.weight differed from rank to rank", world_size=4)
    cluster.raise_in(0, kind="SnapshotError")
    assert cluster.state.phase is Phase.GATHERING
    assert sizes(cluster) == [1, 2]
    cluster.wait(60)
    assert cluster.state.phase is Phase.GATHERING, "it waits"
    cluster.have(2)
    cluster.train(1)
    assert (cluster.state.phase, len(cluster.state.workers)) == (Phase.RUNNING, 4)
    assert cluster.chosen[-1][0] == 2
    cluster.have(3)
    cluster.train(60)
    assert len(cluster.state.active_nodes) == 2


def test_a_size_outside_of_the_bounds_is_not_believed():
    cluster = started()
    cluster.train(2)
    cluster.fix_size("nonsense", world_size=1000)
    assert cluster.state.fixed_slots == 0


def test_a_fixed_number_of_nodes_has_none_of_it():
    cluster = Cluster(RunSpec(program="train.py", num_slots=2, nproc_per_node=1, num_standby=1), POLICY, capacity=2)
    cluster.start()
    cluster.train(2)
    cluster.fix_size("asked for")
    cluster.have(1)
    cluster.lose_node("n1")
    cluster.wait(60)
    assert sizes(cluster) == []
    assert cluster.state.fixed_slots == 0
    assert not [key for key in cluster.state.timers if key.startswith(("shrink", "grow", "least"))]


def test_what_is_lost_is_accounted_for():
    """The ranks that are missing cost what a wait for nodes costs."""
    cluster = started(least=1, most=2, capacity=2)
    cluster.train(10)
    cluster.have(1)
    cluster.lose_node("n1")
    cluster.train(16)
    header = Header(run="r0001", policy={}, everstep_version="test")
    view = fold(header, cluster.records)
    assert view.spec.num_slots == 1
    assert history_of(view).world_size == 4


def test_snapshots_of_a_world_that_was_not_told_are_of_the_present_one():
    """As agents of older versions, and older journals, have it."""
    assert Held(rank=0, steps=(1,)).world_size == 0
    cluster = started(least=1, most=2, capacity=2)
    cluster.train(3)
    cluster.kill(0)
    assert cluster.chosen[-1][0] == 2
    assert all(member.role is not Role.OUT for member in cluster.state.members.values())
