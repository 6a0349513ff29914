"""A machine is gone, with the snapshots in its memory: a standby takes its place and goes on from the copies."""

from pathlib import Path

from exact_training import TRAIN
from real_run import Launcher, Run

from everstep.model.actions import StartWorkers
from everstep.model.events import NodeJoined, NodeLost, RestoreFailed

ANCHOR = 31
"""A step that all ranks copy and keep, however far apart their other copies are: on a busy machine those may have none
in common. Every 32nd, and the next one is beyond where the training waits."""

CONFIG = f"[policy]\ndigest_every = {ANCHOR + 1}\n"

RENDEZVOUS_FIRST = """
import time
import torch, torch.distributed as dist, everstep
dist.init_process_group("gloo")
torch.manual_seed(0)
state = everstep.State(model=torch.nn.Linear(4, 4))
for step in state.steps(100_000):
    time.sleep(0.05)
    dist.all_reduce(torch.ones(8))
    print("step", step, "", flush=True)
"""


def until_printed(run: Run, step: int, generation: int) -> None:
    files = [run.run_dir / f"logs/gen-{generation}/rank-{rank}/stdout.log" for rank in range(2)]
    run.until(f"step {step}", lambda: all(f.exists() and f"step {step} " in f.read_text() for f in files))


def is_ready(run: Run) -> bool:
    """A standby is there, and beside rank 0 a copy of rank 1 of a step that rank 0 keeps, too."""
    beside = next(start.node for start in run.actions(StartWorkers) if start.slot == 0)
    is_copied = all(ANCHOR in run.held_steps(beside, rank) for rank in (0, 1))
    return is_copied and len({event.node for event in run.events(NodeJoined)}) == 3


def test_a_lost_machine_costs_neither_the_run_nor_a_bit_of_its_result(launcher: Launcher):
    script = launcher.script(TRAIN)
    quiet = launcher.in_peace(script, 50, 0.0)
    # Alone on its node a rank has more threads, and products on a CPU then differ in a last bit once in a dozen runs.
    one_thread = {"OMP_NUM_THREADS": "1"}
    where = ["--local-nodes", 2, "--standby", 1, "--config", launcher.script(CONFIG, "everstep.toml")]
    run = launcher.start(*where, script, 50, 0.08, 45, env=one_thread)
    until_printed(run, 12, 0)
    run.until("a copy, and a standby", lambda: is_ready(run))
    lost = run.rank_pid(1), next(start.node for start in run.actions(StartWorkers) if start.slot == 1)
    result = run.drill("lose-node", lost[1])
    assert result.passed, result
    assert run.wait() == 0, run.story()
    assert [event.kept for event in run.events(NodeLost)] == [()], "its memory is gone with it"
    assert not run.events(RestoreFailed)
    started = [start for start in run.actions(StartWorkers) if start.generation == 1]
    fetched = [fetch for start in started for fetch in start.fetch]
    assert [(fetch.rank, fetch.step) for fetch in fetched] == [(1, started[0].resume_step)]
    assert started[0].resume_step >= ANCHOR
    for rank in (0, 1):
        assert run.said(rank) == quiet[rank]


def threads_of(pid: int) -> set[str]:
    return {path.read_text().strip() for path in Path(f"/proc/{pid}/task").glob("*/comm")}


def test_a_rank_that_goes_on_from_a_standby_is_watched_like_any_other(launcher: Launcher):
    """It first asks who it is in its rendezvous, and waits there for a node to be lost. (With `uncompiled` it would be
    parked before.)"""
    run = launcher.start("--local-nodes", 2, "--standby", 1, launcher.script(RENDEZVOUS_FIRST))
    until_printed(run, 12, 0)
    run.until("a standby", lambda: len({event.node for event in run.events(NodeJoined)}) == 3)
    lost = next(start.node for start in run.actions(StartWorkers) if start.slot == 1)
    assert run.drill("lose-node", lost).passed
    until_printed(run, max(start.resume_step or 0 for start in run.actions(StartWorkers)) + 5, 1)
    for rank in (0, 1):
        pid = run.rank_pid(rank, 1)
        run.until(f"a watch of rank {rank}", lambda pid=pid: "everstep-watch" in threads_of(pid), 30.0)
    run.process.terminate()
    run.wait()
