"""Random lives of a pretended cluster: the view agrees with the brain, and the seconds add up at every record."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.core.state.schema import State
from everstep.goodput.figures import goodput_of
from everstep.journal.fold import Fold
from everstep.journal.history import history_of
from everstep.model import events
from everstep.model.record import Header
from everstep.model.spec import Mode, RunSpec
from everstep.report.goodput import render_goodput
from everstep.report.incidents.explain import render_explanation
from everstep.report.incidents.incident import render_incident, render_incidents
from everstep.report.now.narrate import Narrator
from everstep.report.now.status import render_status
from everstep.report.parts.asked import Asked
from everstep.testing.cluster import Cluster

HEADER = Header(run="r0001", everstep_version="test", policy={"max_restarts": 3, "budget_window_s": 60.0})

deeds = st.sampled_from(
    (
        "train",
        "kill",
        "raise",
        "peer",
        "oom",
        "lose",
        "wait",
        "hold-stop",
        "hold-start",
        "release",
        "reopen",
        "stop",
        "controller",
    )
)


def brain_status(state: State) -> str:
    """The public status as the state has it, told without the journal."""
    if state.phase is Phase.OVER:
        assert state.ending is not None
        return state.ending.outcome
    if state.phase is Phase.PROPOSING:
        return "waiting-for-approval"
    if state.phase is Phase.STOPPING and state.ending is not None and state.ending.outcome == "stopped":
        return "stopping"
    return "recovering" if state.incident is not None else "running"


def harm(cluster: Cluster, deed: str, rank: int) -> None:
    worker = cluster.state.workers.get(rank)
    if worker is None or worker.exit is not None:
        return
    deeds = {"kill": cluster.kill, "raise": cluster.raise_in, "peer": cluster.lose_peer, "oom": cluster.oom}
    deeds[deed](rank)


def do(cluster: Cluster, deed: str, rank: int) -> None:
    nodes = cluster.state.active_nodes
    match deed:
        case _ if cluster.state.is_over:
            pass
        case "train" if cluster.state.phase is Phase.RUNNING:
            cluster.train(2, step_s=0.5)
        case "kill" | "raise" | "peer" | "oom":
            harm(cluster, deed, rank)
        case "lose" if nodes:
            cluster.lose_node(nodes[rank % len(nodes)])
        case "wait":
            cluster.wait(1.0 + rank)
        case "hold-stop" | "hold-start":
            cluster.held_back = {"StopWorkers" if deed == "hold-stop" else "StartWorkers"}
        case "release" | "controller":
            cluster.held_back = set()
            cluster.restart_controller()
        case "reopen":
            cluster.clock.now += 10.0
            cluster.feed(events.RunReopened(at=cluster.clock.now, attempt=cluster.state.attempt + 1))
        case "stop" if rank == 3:
            cluster.feed(events.StopRequested(at=cluster.clock.now, why="SIGINT", signal=2))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(deeds, st.integers(0, 3)), max_size=14),
    st.sampled_from(Mode),
    st.booleans(),
)
def test_the_view_is_the_brains_and_the_seconds_add_up(
    life: list[tuple[str, int]], mode: Mode, snapshots: bool
) -> None:
    spec = RunSpec(program="train.py", num_slots=2, nproc_per_node=2, mode=mode)
    cluster = Cluster(spec, Policy(max_restarts=3, budget_window_s=60.0), snapshots=snapshots)
    cluster.start()
    folding, narrator, num_seen = Fold(HEADER), Narrator(HEADER), 0
    for deed, rank in life:
        do(cluster, deed, rank)
        for record in cluster.records[num_seen:]:
            folding.add(record)
            narrator.tell(record)
        num_seen = len(cluster.records)
        view = folding.view
        assert str(view.status).replace("starting", "running") == brain_status(cluster.state)
        assert view.open_incident == (cluster.state.incident.id if cluster.state.incident else None)
        for now in (None, cluster.clock.now + 1.0):
            goodput = goodput_of(history_of(view, now))
            assert all(value >= 0.0 for value in goodput.seconds.values())
            assert abs(math.fsum(goodput.seconds.values()) - goodput.wall_s * goodput.num_ranks) < 1e-6
        asked = Asked(at=cluster.clock.now, controller_pid=1)
        assert render_status(view, goodput, asked)
        assert render_goodput(view, goodput, asked)
        assert render_incidents(view, asked)
        for incident in view.incidents.values():
            assert incident.id in render_incident(view, incident)
            assert incident.id in render_explanation(view, incident)
