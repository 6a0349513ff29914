"""Numbers and digests end to end: real gloo ranks that say, or log, what goes wrong, and go on training."""

from real_run import Launcher, Run

from everstep.model.actions import Concluded, IncidentClosed
from everstep.model.events import AnomalyFound, RuntimeFaulted
from everstep.model.verdict import Verdict

CONFIG = "[policy]\nwatch_hangs = false\nwatch_slowness = false\ndigest_every = 10\n"

TOLD = """
import math, time
import uncompiled, torch, torch.distributed as dist
import everstep
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
state = everstep.State(model=model, optimizer=optimizer)
for step in state.steps(100):
    loss = model(torch.randn(4, 16)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 23 and rank == 2:  # one bit in the middle of a mantissa
        weight = model.module[0].weight.data
        weight.view(torch.int32)[3, 5] ^= 1 << 11
    said = 1.0 + 0.1 * math.sin(step)
    if step == 50:
        said = 7.0
    if step >= 70 and rank == 1:
        said = float("nan")
    everstep.step(loss=torch.tensor(said), grad_norm=0.5)
    time.sleep(0.03)
with everstep.paused("the end is looked at"):
    time.sleep(1.5)
dist.destroy_process_group()
"""

LOGGED = """
import time
import uncompiled, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(90):
    model(torch.ones(2, 8)).square().sum().backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    optimizer.step()
    optimizer.zero_grad()
    if step == 33 and rank == 1:
        model.bias.data.view(torch.int32)[2] ^= 1
    if rank == 0:
        loss = "nan" if step >= 60 else f"{3 - step / 100:.4E}"
        print(f" [2026-01-02 03:04:05] iteration {step:8}/  90 | consumed samples: 1 | "
              f"elapsed time per iteration (ms): 30.0 | lm loss: {loss} | grad norm: 1.234 | "
              "number of skipped iterations:   0 | number of nan iterations:   0 |", flush=True)
    time.sleep(0.03)
time.sleep(1.5)
dist.destroy_process_group()
"""


def train(launcher: Launcher, text: str, num_ranks: int) -> Run:
    config = launcher.script(CONFIG, "everstep.toml")
    # In mode act the job would go back to a step after which the replicas agreed (test_run_corruption).
    run = launcher.start("--config", config, "--mode", "observe", "--nproc-per-node", num_ranks, launcher.script(text))
    assert run.wait() == 0, run.story()
    assert not run.events(RuntimeFaulted), run.story()
    # Training went on: every incident is closed at once, as one that was only looked at.
    assert {closed.outcome for closed in run.actions(IncidentClosed)} == {"observed"}, run.story()
    assert len(run.actions(IncidentClosed)) == len(run.events(AnomalyFound))
    return run


def verdicts(run: Run) -> dict[str, Verdict]:
    found = {action.verdict.code: action.verdict for action in run.actions(Concluded)}
    assert len(found) == len(run.actions(Concluded)), [action.verdict.sentence for action in run.actions(Concluded)]
    return found


def test_a_flipped_bit_a_jump_and_a_nan_are_found_while_training_goes_on(launcher: Launcher) -> None:
    run = train(launcher, TOLD, 4)
    found = verdicts(run)
    assert set(found) - {"ES-N01"} == {"ES-N04", "ES-N02", "ES-N07"}, run.story()
    flipped = found["ES-N04"]
    assert (flipped.ranks, flipped.group_ranks) == ((2,), (0, 1, 2, 3))
    assert "at step 29" in flipped.sentence  # the next digest after step 23
    assert "0.weight" in flipped.sentence
    assert "at step 50" in found["ES-N02"].sentence
    assert found["ES-N02"].ranks == ()  # whoever said it is no suspect
    lasting = found["ES-N07"]
    assert "since step 70" in lasting.sentence
    assert lasting.evidence[0].rank == 1
    assert lasting.evidence[0].source == "everstep.step"
    if "ES-N01" in found:  # told of before two more steps were over, which is usual
        assert "at step 70" in found["ES-N01"].sentence


def test_a_nan_in_a_log_and_replicas_that_nobody_declared(launcher: Launcher) -> None:
    found = verdicts(train(launcher, LOGGED, 2))
    assert set(found) - {"ES-N01"} == {"ES-N05", "ES-N07"}
    assert "since step 60" in found["ES-N07"].sentence
    assert found["ES-N07"].evidence[0].source == "log"
    assert "step 39" in found["ES-N05"].sentence  # two replicas: that they differ, not which is right
