"""A rank leaves an update out, as a `continue` under a condition on its data does: the program is to blame."""

import pytest
from real_run import Launcher

from everstep.model.actions import EvictNode, IncidentClosed
from everstep.model.events import AnomalyFound

CONFIG = "[policy]\nwatch_hangs = false\nwatch_slowness = false\ndigest_every = 20\n"
NUM_STEPS, LEFT_OUT = 45, 12

TRAIN = """
import os, sys, time
import uncompiled, torch, torch.distributed as dist
import everstep
dist.init_process_group("gloo")
rank, steps, left_out, keeps = dist.get_rank(), int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] != "plain"
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
torch.manual_seed(100 + rank)
state = everstep.State(model=model, optimizer=optimizer) if keeps else None
for step in state.steps(steps) if keeps else range(steps):
    time.sleep(0.03)
    if sys.argv[3] == "restarted" and step == 5 and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise RuntimeError("the first life ends")
    loss = model(torch.randn(4, 16)).square().mean()
    loss.backward()
    if step == left_out and rank == 2:
        optimizer.zero_grad()
        continue
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("keeps", ["plain", "restarted", pytest.param("state", marks=pytest.mark.soak)])
def test_the_rank_that_left_an_update_out_is_named_and_no_node_evicted(launcher: Launcher, keeps: str) -> None:
    config, script = launcher.script(CONFIG, "everstep.toml"), launcher.script(TRAIN)
    options = ("--config", config, "--local-nodes", 1, "--standby", 1, "--nproc-per-node", 3)
    run = launcher.start(*options, script, NUM_STEPS, LEFT_OUT, keeps)
    assert run.wait() == 0, run.story()
    found = run.events(AnomalyFound)
    assert [(f.verdict.code, f.verdict.ranks, f.verdict.blame) for f in found] == [("ES-N08", (2,), "user")], (
        run.story()
    )
    assert f"at step {LEFT_OUT}" in found[0].verdict.sentence
    assert not run.actions(EvictNode)
    outcomes = ["recovered", "observed"] if keeps == "restarted" else ["observed"]
    assert [closed.outcome for closed in run.actions(IncidentClosed)] == outcomes
