"""Rows of ByteRobust's incident table in real runs: those that are quick. All of them: bench/incidents.py."""

import pytest
from real_run import Launcher, Run

from everstep.engines.network import Namespaces, NetworkError
from everstep.model.actions import Concluded, EvictNode, IncidentClosed, StartWorkers
from everstep.model.events import NodeJoined, ReplicasAgreed

LIMIT_S = 240.0
CONFIG = "[policy]\nwatch_hangs = false\nwatch_slowness = false\ndigest_every = 5\n"

TRAIN = """
import math, os, time
from pathlib import Path
import uncompiled, torch, torch.distributed as dist
import everstep
dist.init_process_group("gloo")
rank, kind, once = dist.get_rank(), os.environ["ROW"], Path(os.environ["EVERSTEP_TEST_DIR"]) / "once"
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
state = everstep.State(model=model, optimizer=optimizer)
for done, step in enumerate(state.steps(100_000)):
    loss = model(torch.ones(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    everstep.step(loss=loss.item())
    print("step", step, flush=True)
    if kind == "nan" and not math.isfinite(loss.item()):
        raise FloatingPointError(f"loss became {loss.item()} at step {step}")
    if done == 30 and rank == dist.get_world_size() - 1 and not once.exists():
        once.touch()
        if kind == "nan":
            model.module.weight.data[0, 0] = float("nan")
        elif kind == "hdfs":
            raise OSError("HDFS connectToHost failed: java.net.ConnectException: Connection refused: namenode:8020")
    # A step that may come to be trusted is kept until the next such: by then everybody must have heard that it agreed.
    time.sleep(0.1 if kind == "nan" else 0.02)
"""


def start(launcher: Launcher, row: str, *options: object) -> Run:
    config = launcher.script(CONFIG, "everstep.toml")
    return launcher.start("--config", config, *options, launcher.script(TRAIN), env={"ROW": row})


def recovered(run: Run) -> IncidentClosed:
    is_over = lambda: next((each for each in run.actions(IncidentClosed) if each.outcome == "recovered"), None)  # noqa: E731
    return run.until("the incident's end", is_over, LIMIT_S)


def test_a_program_that_raises_on_nan_goes_on_from_before_it(launcher: Launcher) -> None:
    """Its newest snapshots have the NaN in them."""
    run = start(launcher, "nan", "--nproc-per-node", 2)
    closed = recovered(run)
    told = [(each.verdict.code, each.decision.rule) for each in run.actions(Concluded)]
    assert set(told) == {("ES-N01", "explain-only"), ("ES-TR01", "go-back")}, run.story()
    trusted = max(event.step for event in run.events(ReplicasAgreed) if event.generation == 0)
    (resumed,) = {start.resume_step for start in run.actions(StartWorkers) if start.generation == 1}
    assert resumed is not None
    assert resumed <= trusted <= 30
    assert closed.lost_steps, "what is done again is counted"
    assert [each.outcome for each in run.actions(IncidentClosed)] == ["observed", "recovered"], "it does not come again"
    run.process.terminate()
    run.wait()


def test_where_nothing_is_trusted_the_snapshot_before_the_nan_is_taken(launcher: Launcher) -> None:
    """One rank has no replica. The newest snapshot brings the NaN back, the one before it does not."""
    run = start(launcher, "nan", "--nproc-per-node", 1)
    closed = recovered(run)
    first, newest, older = (start.resume_step for start in run.actions(StartWorkers))
    assert (first, newest, older) == (None, newest, newest - 1), run.story()
    assert closed.lost_steps == 1
    run.process.terminate()
    run.wait()


def test_a_storage_that_refuses_the_connection_is_the_cause_and_no_peer(launcher: Launcher) -> None:
    run = start(launcher, "hdfs", "--nproc-per-node", 2)
    assert recovered(run).lost_steps == 0, run.story()
    (verdict,) = {action.verdict.code: action.verdict for action in run.actions(Concluded)}.values()
    assert (verdict.code, str(verdict.blame), verdict.ranks) == ("ES-OS02", "storage", (1,))
    assert {action.decision.rule for action in run.actions(Concluded)} == {"restart-in-place"}
    run.process.terminate()
    run.wait()


@pytest.mark.soak
def test_a_link_that_flaps_twice_costs_its_node_and_no_step(launcher: Launcher) -> None:
    try:
        Namespaces().close()
    except NetworkError as error:
        pytest.skip(str(error))
    nodes = ("--local-nodes", 2, "--standby", 1, "--nproc-per-node", 1, "--network", "namespaces")
    run = start(launcher, "link", *nodes)
    run.until_step(20)
    run.until("a standby", lambda: len(run.events(NodeJoined)) == 3)
    node = next(action.node for action in run.actions(StartWorkers) if action.slot == 1)
    result = run.drill("flap-link", node, limit_s=LIMIT_S * 2)
    assert result.passed, result
    assert result.code == "ES-M14"
    assert [action.node for action in run.actions(EvictNode)][:1] == [node]
    assert run.actions(IncidentClosed)[0].lost_steps == 0, run.story()
    run.process.terminate()
    run.wait()
