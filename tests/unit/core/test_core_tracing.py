"""A rank that a slow incident blames is traced by its node, if nothing is done about it, within the run's limits."""

import msgspec
import pytest

from everstep.core.faults.tracing import MAX_ASKED_BYTES, MAX_BYTES
from everstep.core.state.policy import Policy
from everstep.model.actions import Action, IncidentClosed, Refused, StopWorkers, TraceRank
from everstep.model.events import RankTraced, StopRequested, TraceRequested
from everstep.model.spec import RunSpec
from everstep.testing.cluster import Cluster


def begun(*, standby: int = 0, **policy: float) -> Cluster:
    made = Cluster(
        RunSpec(program="train.py", num_slots=2, nproc_per_node=2, num_standby=standby),
        msgspec.structs.replace(Policy(), **policy),
    )
    made.start()
    made.train(10)
    return made


def traces(actions: list[Action]) -> list[TraceRank]:
    return [action for action in actions if isinstance(action, TraceRank)]


def test_the_node_of_the_blamed_rank_traces_it_for_a_moment() -> None:
    made = begun()
    actions = made.anomaly("ES-S10", 3)
    (trace,) = traces(actions)
    assert (trace.rank, trace.node, trace.generation, trace.incident) == (3, made.state.workers[3].node, 0, "i1")
    assert (trace.seconds, trace.max_bytes) == (3.0, MAX_BYTES)
    closed = next(number for number, action in enumerate(actions) if isinstance(action, IncidentClosed))
    assert actions.index(trace) < closed, "it belongs to the incident, which does not wait for it"


@pytest.mark.parametrize("code", ["ES-N01", "ES-D01"])
def test_what_is_not_slow_is_not_traced(code: str) -> None:
    assert not traces(begun().anomaly(code, 0))


def test_a_machine_that_is_evicted_is_not_traced() -> None:
    actions = begun(standby=1).anomaly("ES-S01", 2)
    assert any(isinstance(action, StopWorkers) for action in actions)
    assert not traces(actions)


def test_a_rank_that_is_slow_without_a_fault_of_its_machine_is_traced_too() -> None:
    made = begun()
    (trace,) = traces(made.anomaly("ES-S10", 1, refused="it slept"))
    assert (trace.rank, trace.incident) == (1, "slow1")
    assert not traces(begun().anomaly("ES-N01", 1, refused="no"))
    made.kill(0)
    assert not traces(made.anomaly("ES-S10", 2, refused="it slept")), "while a fault is handled"


def test_a_limit_is_said_of_incidents_only() -> None:
    made = begun(max_slow_traces=1)
    assert traces(made.anomaly("ES-S10", 1, refused="it slept"))
    refused = [action for action in made.anomaly("ES-S10", 2, refused="it slept") if isinstance(action, Refused)]
    assert [each.why for each in refused] == ["it slept"]


def test_it_can_be_switched_off() -> None:
    assert not traces(begun(slow_trace_s=0.0).anomaly("ES-S10", 1))


def test_one_rank_and_code_is_traced_twice_and_a_run_so_often() -> None:
    made = begun(max_slow_traces=3)
    assert [len(traces(made.anomaly("ES-S10", 1))) for _ in range(3)] == [1, 1, 0]
    assert traces(made.anomaly("ES-S07", 1)), "another cause of the same rank"
    actions = made.anomaly("ES-S10", 2)
    assert not traces(actions)
    (refused,) = [action for action in actions if isinstance(action, Refused)]
    assert refused.incident
    assert refused.why == "3 in this run, 3 allowed (policy max_slow_traces)"


def test_its_answer_changes_nothing() -> None:
    made = begun()
    (trace,) = traces(made.anomaly("ES-S10", 1))
    before = made.state
    told = RankTraced(at=made.clock.now, node=trace.node, generation=0, incident="i1", rank=1, file="traces/x.json")
    assert made.feed(told) == []
    assert made.state == before


def ask(made: Cluster, rank: int) -> list[Action]:
    return made.feed(TraceRequested(at=made.clock.now, request="t9", rank=rank, seconds=5.0))


def test_a_person_asks_for_the_trace_of_any_rank_and_its_node_makes_it() -> None:
    made = begun(max_slow_traces=0)
    for rank in (0, 3):
        (trace,) = traces(ask(made, rank))
        assert (trace.rank, trace.node, trace.generation) == (rank, made.state.workers[rank].node, 0)
        assert (trace.incident, trace.seconds, trace.max_bytes) == ("t9", 5.0, MAX_ASKED_BYTES)
    assert made.state.incident is None


def test_it_takes_nothing_of_what_slow_incidents_may_have() -> None:
    made = begun(max_slow_traces=1)
    for _ in range(3):
        assert traces(ask(made, 1))
    assert traces(made.anomaly("ES-S10", 1))


def test_a_rank_without_a_process_is_refused_with_the_reason() -> None:
    made = begun()
    (refused,) = [each for each in ask(made, 7) if isinstance(each, Refused)]
    assert (refused.what, refused.why) == ("trace t9", "rank 7 has no process at the moment")
    made.feed(StopRequested(at=made.clock.now, why="SIGTERM", signal=15))
    assert not traces(ask(made, 0)), "the run is ending"
