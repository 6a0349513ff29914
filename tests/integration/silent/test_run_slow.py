"""Slow ranks end to end: real gloo ranks, one of which takes longer, for a machine's reason or for another one.

Rounds are shortened to two or three seconds; everything else is as it is delivered.
"""

import signal

import pytest
from real_run import Launcher, Run

from everstep.model.actions import Concluded, EvictNode, IncidentClosed, IncidentOpened, StartWorkers
from everstep.model.events import AnomalyFound, NodeJoined

QUICK = "[policy]\nslow_round_s = {round_s}\n"
ROUNDS_S = 30.0
"""Enough for the first rounds and for five that vote, on a busy machine."""

pytestmark = pytest.mark.slow

SLOW_MACHINE = """
import os, sys, time
import uncompiled, torch, torch.distributed as dist
import everstep
dist.init_process_group("gloo")
rank = dist.get_rank()
state = everstep.State(model=torch.nn.Linear(4, 4))
is_slow = os.environ["EVERSTEP_SLOT"] == "1" and os.environ["EVERSTEP_GENERATION"] == "0" and rank == 3
for step in state.steps(100_000):  # so long that what a busy machine is late with is little beside 30 %
    time.sleep(0.12 * (1.3 if is_slow and step > 60 else 1))
    dist.all_reduce(torch.ones(64))
    time.sleep(0.08 * (1.3 if is_slow and step > 60 else 1))
    dist.all_reduce(torch.ones(8))
"""


def start(launcher: Launcher, script: str, *argv: object, nodes: tuple[object, ...] = (), round_s: float = 2) -> Run:
    """Few entries in the flight record: with rounds of two seconds it must be five times as cheap."""
    flags = ("--config", launcher.script(QUICK.format(round_s=round_s), "everstep.toml"), *nodes)
    return launcher.start(*flags, launcher.script(script), *argv, env={"TORCH_FR_BUFFER_SIZE": "128"})


@pytest.mark.timeout(400)
def test_a_slow_machine_is_evicted_for_the_standby_and_no_step_is_lost(launcher: Launcher):
    run = start(launcher, SLOW_MACHINE, nodes=("--local-nodes", 2, "--nproc-per-node", 2, "--standby", 1), round_s=3)
    closed = run.until("the incident's end", lambda: run.actions(IncidentClosed), limit_s=300.0)
    (verdict,) = {action.verdict.code: action.verdict for action in run.actions(Concluded)}.values()
    assert (verdict.code, verdict.ranks) == ("ES-S01", (3,)), verdict
    slow_node = next(a.node for a in run.actions(StartWorkers) if a.slot == 1 and a.generation == 0)
    assert [action.node for action in run.actions(EvictNode)] == [slow_node]
    assert (closed[0].outcome, closed[0].lost_steps) == ("recovered", 0), run.story()
    restarted = [action for action in run.actions(StartWorkers) if action.generation == 1]
    standby = {event.node for event in run.events(NodeJoined)} - {
        action.node for action in run.actions(StartWorkers) if action.generation == 0
    }
    assert next(action.node for action in restarted if action.slot == 1) in standby
    assert all(action.resume_step is not None and action.resume_step > 60 for action in restarted)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130


IMBALANCES = """
import gc, os, random, sys, time
import uncompiled, torch, torch.distributed as dist
import everstep
kind, end = sys.argv[1], time.time() + float(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
state = everstep.State(model=torch.nn.Linear(4, 4))
dice = random.Random(rank)
group = None
if kind == "stage":
    dist.new_group([0, 2], group_desc="mesh_pp"), dist.new_group([1, 3], group_desc="mesh_pp")
    group = [dist.new_group([0, 1], group_desc="mesh_dp"), dist.new_group([2, 3], group_desc="mesh_dp")][rank // 2]
if kind == "collector":
    garbage = [[i] for i in range(400_000)] if rank == 1 else []


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 10**9

    def __getitem__(self, i):
        time.sleep(0.03 if rank == 1 else 0.0)
        return torch.ones(4)


batches = iter(torch.utils.data.DataLoader(Slow(), batch_size=1)) if kind == "loader" else None
for step in state.steps(10**9):
    if kind == "lengths":  # another length on every rank in every step
        time.sleep(dice.uniform(0.02, 0.08))
    elif kind == "work":  # rank 1 has a third more to do, says so, and began with that only later
        tokens = 1000 * (1.4 if rank == 1 and step > 100 else 1.0)
        time.sleep(0.05 * tokens / 1000)
        everstep.step(work=tokens)
    elif kind == "stage":  # the last stage has the output layer and the loss
        there = torch.ones(16)
        if rank < 2:
            time.sleep(0.01)
            dist.send(there, rank + 2)
            dist.recv(there, rank + 2)
            time.sleep(0.02)
        else:
            dist.recv(there, rank - 2)
            time.sleep(0.05)
            dist.send(there, rank - 2)
    elif kind == "collector":
        time.sleep(0.05)
        if rank == 1 and step > 100:
            gc.collect()
    elif kind == "loader":
        next(batches)
        time.sleep(0.05)
    dist.all_reduce(torch.ones(64), group=group)
    if step % 20 == 19:  # everybody ends in the same step
        over = torch.tensor(float(time.time() > end))
        dist.all_reduce(over)
        if over > 0:
            break
dist.destroy_process_group()
"""
EXPECTED = {
    "lengths": set(),
    "stage": set(),
    "work": {"ES-S04"},
    "collector": {"ES-S06"},
    "loader": {"ES-S07"},
}


@pytest.mark.soak
@pytest.mark.parametrize("kind", EXPECTED)
def test_what_is_no_machines_fault_evicts_nobody(launcher: Launcher, kind: str):
    nodes = ("--local-nodes", 2, "--nproc-per-node", 2, "--standby", 1)
    run = start(launcher, IMBALANCES, kind, ROUNDS_S, nodes=nodes)
    assert run.wait(120.0) == 0, run.story()
    assert not run.actions(EvictNode), run.story()
    assert not run.actions(IncidentOpened), run.story()
    found = run.events(AnomalyFound)
    assert all(event.refusal is not None for event in found)
    assert {event.verdict.code for event in found} >= EXPECTED[kind], run.story()
    assert "fail-slow vote" in (run.run_dir / "controller.log").read_text()
