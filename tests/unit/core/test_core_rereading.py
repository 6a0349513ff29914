"""What could only not be read is tried again, then left for this attempt; and a start that fetches may wait."""

from everstep.core.restore import rereading
from everstep.core.state.policy import Policy
from everstep.model import actions, events
from everstep.model.actions import Action
from everstep.model.spec import RunSpec
from everstep.testing import Cluster

OLD, NEW = "/ckpt/step-2", "/ckpt/step-5"


def cluster(copies_lag: int | None = None, **policy: object) -> Cluster:
    spec = RunSpec(program="train.py", num_slots=2, num_standby=1)
    # Tries in a row would wait for each other; what comes next is what is looked at here.
    made = Cluster(spec, Policy(backoff_s=0.0, **policy), copies_lag=copies_lag)  # type: ignore[arg-type]
    made.start()
    return made


def with_checkpoints(**policy: object) -> Cluster:
    run = cluster(**policy)
    for _ in range(2):
        run.train(3)
        run.checkpoint()
    return run


def of(kind: type, decided: list[Action]) -> list:
    return [action for action in decided if isinstance(action, kind)]


def paths(decided: list[Action]) -> list[str]:
    """One for each generation."""
    starts = of(actions.StartWorkers, decided)
    return [path for _, path in sorted({(start.generation, start.restore_path) for start in starts})]


def tries_in_vain(run: Cluster) -> None:
    """Generation 1 is to start from the newest checkpoint, cannot read it, and is being stopped."""
    run.memory.unreadable.add(NEW)
    run.held_back.add("StartWorkers")
    run.lose_node("n1")
    run.held_back = {"StopWorkers"}
    run.restart_controller()


def test_a_checkpoint_that_cannot_be_read_is_read_again_and_then_the_one_before_is_taken():
    run = with_checkpoints()
    run.memory.unreadable.add(NEW)
    decided = run.lose_node("n1")
    assert paths(decided) == [NEW] * (1 + rereading.MAX_RETRIES) + [OLD]
    concluded = of(actions.Concluded, decided)
    rules = {each.incident: each.decision.rule for each in concluded if each.verdict.code == "ES-P08"}
    assert list(rules.values()) == ["read-again"] * rereading.MAX_RETRIES + ["restore-another"]


def test_a_storage_that_answers_again_costs_no_step():
    run = with_checkpoints()
    tries_in_vain(run)
    run.memory.unreadable.clear()
    run.held_back.clear()
    run.restart_controller()
    assert run.state.formation is not None
    assert run.state.formation.restore_path == NEW
    assert run.state.struck == ()
    run.train(1)
    assert run.state.incident is None


def test_all_ranks_that_cannot_read_it_count_once():
    run = with_checkpoints()
    tries_in_vain(run)
    assert run.state.unread is not None
    assert run.state.unread.count == 1


def test_what_is_damaged_is_not_read_again_because_somebody_else_could_not_read_it():
    run = with_checkpoints()
    tries_in_vain(run)
    damaged = events.RestoreFailed(
        at=run.clock.now, node="n0", generation=1, rank=0, step=5, source="disk", where=NEW, why="sums do not match"
    )
    run.feed(damaged)
    run.held_back.clear()
    assert paths(run.restart_controller()) == [OLD]


def test_the_budget_of_restarts_bounds_it():
    run = with_checkpoints(max_restarts=2)
    run.memory.unreadable.add(NEW)
    finish = of(actions.Finish, run.lose_node("n1"))
    assert [each.outcome for each in finish] == ["gave-up"]


def test_the_next_attempt_of_the_run_tries_it_once_more_but_nothing_that_is_damaged():
    run = with_checkpoints()
    run.memory.unreadable.add(NEW)
    run.memory.damaged.add(OLD)
    run.lose_node("n1")
    assert run.state.is_over, "nothing is left to restore"

    run = with_checkpoints()
    run.memory.unreadable.add(NEW)
    run.lose_node("n1")
    assert {struck.path for struck in run.state.struck} == {NEW}
    run.memory.unreadable.clear()
    run.feed(events.RunReopened(at=run.clock.now, attempt=2))
    assert run.state.struck == ()
    assert run.state.formation is not None
    assert run.state.formation.restore_path == NEW


def test_a_start_that_fetches_has_the_time_for_it():
    run = cluster(copies_lag=0, start_timeout_s=10.0, fetch_timeout_s=100.0)
    run.train(5)
    run.held_back.add("StartWorkers")
    run.lose_node("n1")
    assert run.state.formation is not None
    assert run.state.formation.fetch
    assert not of(actions.IncidentOpened, run.wait(100.0))
    run.wait(11.0)
    said = [a.verdict.sentence for r in run.records for a in r.actions if isinstance(a, actions.Concluded)]
    assert any("110 s (policy start_timeout_s + fetch_timeout_s)" in each for each in said)


def test_a_start_from_own_memory_has_not():
    run = cluster(start_timeout_s=10.0, fetch_timeout_s=100.0)
    run.train(5)
    run.held_back.add("StartWorkers")
    run.kill(0)
    assert of(actions.IncidentOpened, run.wait(11.0))
