"""Drills of silent faults end to end: four real gloo ranks, each fault made in a program that knows nothing of it, and
seen, blamed on the right rank and recovered. One run serves all drills of a layout, because starting one takes seconds.
"""

import signal

import pytest
from real_run import Launcher, Run

from everstep.model.actions import Concluded, IncidentClosed, IncidentOpened
from everstep.model.events import DrillRequested, HangSuspected
from everstep.probes.rank.stack import find_py_spy

pytestmark = pytest.mark.skipif(find_py_spy() is None, reason="py-spy is not installed")

DATA_PARALLEL = """
import time
import torch, torch.distributed as dist  # a loader's process has a torch.Generator, which `uncompiled` leaves out
from torch.nn.parallel import DistributedDataParallel
import everstep


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return torch.ones(8) * (index % 5)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    state = everstep.State(model=model, optimizer=optimizer)
    batches = iter(torch.utils.data.DataLoader(Samples(), batch_size=4, num_workers=1))
    for step in state.steps(1_000_000):
        batch = next(batches)
        time.sleep(0.08)
        model(batch).sum().backward()
        optimizer.step(); optimizer.zero_grad()
        if rank == 0:
            print("step", step, flush=True)
"""

TWO_BY_TWO = """
import time
import uncompiled, torch, torch.distributed as dist
import everstep

dist.init_process_group("gloo")
rank = dist.get_rank()
tps = [dist.new_group([0, 1], group_desc="mesh_tp"), dist.new_group([2, 3], group_desc="mesh_tp")]
dps = [dist.new_group([0, 2], group_desc="mesh_dp"), dist.new_group([1, 3], group_desc="mesh_dp")]
tp, dp = tps[rank // 2], dps[rank % 2]
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
state = everstep.State(model=model, optimizer=optimizer)
for step in state.steps(1_000_000):
    time.sleep(0.04)
    loss = model(torch.ones(2, 4)).sum()
    dist.all_reduce(torch.ones(8), group=tp)
    loss.backward()
    time.sleep(0.04)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=dp)
    dist.all_reduce(torch.ones(3))
    optimizer.step(); optimizer.zero_grad()
    if rank == 0:
        print("step", step, flush=True)
"""


NUMBERS = """
import time
import uncompiled, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import everstep

torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
state = everstep.State(model=model, optimizer=optimizer)
for step in state.steps(1_000_000):
    time.sleep(0.08)
    loss = model(torch.ones(4, 8)).sum()
    loss.backward()
    optimizer.step(); optimizer.zero_grad()
    everstep.step(loss=loss)
    if dist.get_rank() == 0:
        print("step", step, flush=True)
"""
SOON = "[policy]\nslow_round_s = 3\ndigest_every = 10\n"


def generation(run: Run) -> int:
    return max(int(path.name.removeprefix("gen-")) for path in (run.run_dir / "logs").glob("gen-*"))


def until_it_steps(run: Run, num_steps: int = 20) -> None:
    """So many steps in the newest generation: the hang rule knows the job's rhythm."""
    run.until("a log", lambda: any((run.run_dir / "logs").glob("gen-*")))

    def steps() -> int:
        log = run.run_dir / f"logs/gen-{generation(run)}/rank-0/stdout.log"
        return log.read_text().count("step ") if log.exists() else 0

    run.until(f"{num_steps} steps", lambda: steps() >= num_steps)


def hang(run: Run, kind: str, rank: int) -> None:
    until_it_steps(run)
    result = run.drill(kind, rank, limit_s=150)
    asked = [event.at for event in run.events(DrillRequested)][-1]
    suspected = [event.at for event in run.events(HangSuspected)][-1:]
    verdict = run.actions(Concluded)[-1].verdict
    print(f"{kind} of rank {rank}: {verdict.code} {verdict.ranks} seen after {[s - asked for s in suspected]}")
    print("   ", verdict.sentence)
    assert result.passed, (result, verdict, run.story())
    assert run.actions(IncidentClosed)[-1].outcome == "recovered"
    if verdict.code.startswith("ES-H"):
        assert verdict.ranks[0] == rank, verdict


CASES = {
    "dp": (DATA_PARALLEL, [("skip-collective", 2), ("mismatched-shape", 1), ("blocked-loader", 3)]),
    "2x2": (
        TWO_BY_TWO,
        [("skip-collective", 2), ("mismatched-shape", 3), ("opposite-order", 1), ("blocked-loader", 0)],
    ),
}


@pytest.mark.timeout(700)
@pytest.mark.parametrize("layout", ["2x2", pytest.param("dp", marks=pytest.mark.soak)])
def test_every_silent_fault_is_seen_blamed_and_recovered(launcher: Launcher, layout: str):
    program, drills = CASES[layout]
    run = launcher.start("--nproc-per-node", 4, launcher.script(program))
    for kind, rank in drills:
        hang(run, kind, rank)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130


@pytest.mark.soak
def test_what_goes_on_and_is_wrong_is_found_and_left_alone(launcher: Launcher):
    config = launcher.script(SOON, "everstep.toml")
    # In mode act the flipped bit would be undone (test_run_corruption), and nothing be left to look at.
    run = launcher.start("--config", config, "--mode", "observe", "--nproc-per-node", 4, launcher.script(NUMBERS))
    until_it_steps(run, 150)  # several rounds: who takes longer from the first ones on is not called slow
    flipped = run.drill("flip-bit", 1, limit_s=150)
    assert (flipped.passed, flipped.code, flipped.ranks) == (True, "ES-N04", (1,)), (flipped, run.story())
    slow = run.drill("slow", 2, "--percent", 60, limit_s=150)
    assert (slow.passed, slow.ranks) == (True, (2,)), (slow, run.story())
    nan = run.drill("nan", 3, limit_s=150)
    assert (nan.passed, nan.code) == (True, "ES-N01"), (nan, run.story())
    print("seen after", [(each.kind, each.detect_s) for each in (flipped, slow, nan)])
    assert generation(run) == 0, "training continues"
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130


@pytest.mark.soak
def test_a_drill_that_cannot_be_is_refused_and_the_job_goes_on(launcher: Launcher):
    run = launcher.start("--nproc-per-node", 4, launcher.script(NUMBERS))
    until_it_steps(run)
    refused = run.drill("opposite-order", 1, limit_s=150)
    assert not refused.passed
    assert "refused: this rank has no two process groups" in refused.got
    until_it_steps(run, 60)
    assert not run.actions(IncidentOpened)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130
