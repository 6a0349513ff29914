"""A bit flips in one replica. It is found at the next digest, and the run ends as if it had never been flipped."""

import pytest
from real_run import Launcher

from everstep.model.actions import Concluded, EvictNode, IncidentClosed, StartWorkers
from everstep.model.events import AnomalyFound, ReplicasAgreed

CONFIG = "[policy]\nwatch_hangs = false\nwatch_slowness = false\ndigest_every = 10\n"
FLIPPED_AT = 30
NUM_STEPS = 50
NUM_RANKS = 3

TRAIN = """
import hashlib, os, sys, time
import uncompiled, torch, torch.distributed as dist
import everstep
dist.init_process_group("gloo")
rank, steps, flipped_at, pause_s = dist.get_rank(), int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(100 + rank)
state = everstep.State(model=model, optimizer=optimizer)
for step in state.steps(steps):
    loss = model(torch.randn(4, 16)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    generation = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if step == flipped_at and rank == 2 and generation < int(sys.argv[4]):  # in the middle of a mantissa
        element = 5 if sys.argv[5] == "same" else 5 + generation
        net[0].weight.data.view(torch.int32)[3, element] ^= 1 << 11
    time.sleep(pause_s)
    print("step", step, loss.item(), flush=True)
numbers = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print("final", hashlib.sha256(numbers).hexdigest(), flush=True)
dist.destroy_process_group()
"""


def test_a_flipped_bit_is_undone(launcher: Launcher) -> None:
    config, script = launcher.script(CONFIG, "everstep.toml"), launcher.script(TRAIN)
    start = ("--config", config, "--nproc-per-node", NUM_RANKS, script, NUM_STEPS)
    quiet = launcher.in_peace(script, NUM_STEPS, NUM_STEPS, 0.0, 0, "same", num_ranks=NUM_RANKS)
    run = launcher.start(*start, FLIPPED_AT, 0.03, 1, "same")
    assert run.wait() == 0, run.story()

    (found,) = run.events(AnomalyFound)
    trusted = max(e.step for e in run.events(ReplicasAgreed) if e.generation == 0)
    assert trusted < FLIPPED_AT
    assert (found.verdict.code, found.verdict.ranks) == ("ES-N04", (2,)), run.story()
    assert "at step 39" in found.verdict.sentence
    (started,) = (action for action in run.actions(StartWorkers) if action.generation == 1)
    assert found.agreed_step == FLIPPED_AT - 1
    assert trusted <= started.resume_step < FLIPPED_AT, "what was told is pinned, so every rank has that at least"
    decision = run.actions(Concluded)[-1].decision
    assert decision.rule == "go-back"
    assert [refused.what for refused in decision.refused] == ["evict n0"], "no standby was ready"
    (closed,) = run.actions(IncidentClosed)
    assert (closed.outcome, closed.resumed_step) == ("recovered", started.resume_step + 1)
    assert closed.lost_steps is not None
    assert closed.lost_steps >= FLIPPED_AT - started.resume_step
    for rank in range(NUM_RANKS):
        assert run.said(rank) == quiet[rank]
        assert len(run.said(rank)) == NUM_STEPS + 1


@pytest.mark.soak
def test_the_machine_that_computed_wrongly_is_replaced(launcher: Launcher) -> None:
    config, script = launcher.script(CONFIG, "everstep.toml"), launcher.script(TRAIN)
    start = ("--config", config, "--local-nodes", NUM_RANKS, script, NUM_STEPS)
    quiet = launcher.in_peace(script, NUM_STEPS, NUM_STEPS, 0.0, 0, "other", num_ranks=NUM_RANKS)
    run = launcher.start("--standby", 1, *start, FLIPPED_AT, 0.1, 2, "other")
    assert run.wait(200) == 0, run.story()

    (evicted,) = run.actions(EvictNode) or pytest.fail(run.story())
    (culprit,) = [start.node for start in run.actions(StartWorkers) if (start.generation, start.slot) == (0, 2)]
    assert evicted.node == culprit
    resumed = [{s.resume_step for s in run.actions(StartWorkers) if s.generation == number} for number in (1, 2)]
    assert all(len(each) == 1 and each.pop() < FLIPPED_AT for each in resumed)
    first = next(each for each in run.actions(Concluded) if each.decision.rule == "go-back")
    assert [refused.what for refused in first.decision.refused] == [f"evict {culprit}"], "it does the steps again first"
    assert run.actions(IncidentClosed)[-1].outcome == "recovered"
    for rank in range(NUM_RANKS):
        assert run.said(rank) == quiet[rank]


@pytest.mark.soak
def test_the_same_bit_twice_has_the_machines_examined_and_none_evicted(launcher: Launcher) -> None:
    """A line that one rank alone runs looks like that, and would look like that on every other machine."""
    config, script = launcher.script(CONFIG, "everstep.toml"), launcher.script(TRAIN)
    start = ("--config", config, "--local-nodes", NUM_RANKS, script, NUM_STEPS)
    quiet = launcher.in_peace(script, NUM_STEPS, NUM_STEPS, 0.0, 0, "same", num_ranks=NUM_RANKS)
    run = launcher.start("--standby", 1, *start, FLIPPED_AT, 0.1, 2, "same")
    assert run.wait(200) == 0, run.story()

    assert not run.actions(EvictNode)
    assert [found.verdict.blame for found in run.events(AnomalyFound)] == ["machine", "unknown"], run.story()
    rules = dict.fromkeys((each.incident, each.decision.rule) for each in run.actions(Concluded))
    assert list(rules) == [("i1", "go-back"), ("i2", "examine"), ("i2", "go-back")], run.story()
    assert run.actions(IncidentClosed)[-1].outcome == "recovered"
    for rank in range(NUM_RANKS):
        assert run.said(rank) == quiet[rank]
