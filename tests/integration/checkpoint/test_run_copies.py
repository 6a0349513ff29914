"""Snapshots of real runs, hurt: a rank that hangs between two snapshots of a slow cadence, and kills in every phase.

All of it takes minutes. The kills are the benchmark's own program, so what it claims is what is tested.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from real_run import Launcher, Run

from everstep.checkpoint import arena
from everstep.model.actions import StartWorkers
from everstep.model.events import WorkersStopped

KILLS = Path(__file__).parents[3] / "bench" / "snapshot_kills.py"

# Its state takes longer to copy than its steps take: not every step can be kept.
HURRIED = """
import uncompiled, torch, torch.distributed as dist
import everstep
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(6_000_000)), torch.nn.Parameter(torch.randn(100))])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
state = everstep.State(model=model, optimizer=optimizer)
for step in state.steps(1_000_000):
    loss = model[1].square().sum() + 1e-6 * model[0][:1000].sum()
    loss.backward()
    dist.all_reduce(model[1].grad)
    optimizer.step()
    optimizer.zero_grad()
"""


def kept_steps(run: Run, rank: int) -> list[int]:
    """Of this rank, as the agent's memory says now."""
    steps: set[int] = set()
    for link in Path(f"/proc/{run.agent_pid()}/fd").iterdir():
        try:
            if re.match(rf"/memfd:everstep-arena-{rank} ", str(link.readlink())):
                fd = os.open(link, os.O_RDONLY)
                steps |= set(arena.held_steps(fd))
                os.close(fd)
        except FileNotFoundError:
            continue
    return sorted(steps)


def pace(run: Run) -> int:
    """Steps between the newest two snapshots of rank 0; 0: not known yet."""
    steps = kept_steps(run, 0)
    return steps[-1] - steps[-2] if len(steps) > 1 else 0


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_ranks_that_hang_between_two_snapshots_save_their_last_step_and_it_is_used(launcher: Launcher):
    config = launcher.script("[policy]\ndigest_every = 0\n", "everstep.toml")
    run = launcher.start("--config", config, "--nproc-per-node", 2, launcher.script(HURRIED))
    run.until("a slower cadence", lambda: pace(run) >= 2, 120.0)
    between = 0
    for _ in range(4):
        every = run.until("a pace", lambda: pace(run) or None)
        assert run.drill("python-loop", 1, limit_s=120.0).passed, run.story()
        stopped = run.events(WorkersStopped)[-1]
        resumed = next(start for start in run.actions(StartWorkers) if start.generation == stopped.generation + 1)
        completed = min(account.last_step for account in stopped.accounts if account.last_step is not None)
        assert resumed.resume_step == completed, run.story()
        between += (completed + 1) % every != 0
        if between:
            break
        run.until("a slower cadence", lambda: pace(run) >= 2, 120.0)
    assert between, "every hang came right after a snapshot: nothing was shown"
    run.process.terminate()
    run.wait()


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "options",
    [
        ("--kills", "12", "--seed", "5"),
        ("--groups", "1", "--mesh", "1,2,2", "--nodes", "4", "--standby", "2", "--state-mb", "16"),
        ("--kills", "2", "--only", "node", "--mesh", "1,2,1", "--nodes", "1", "--pause", "0.2", "--spare", "250"),
    ],
    ids=["ranks, agents, machines, controllers", "whole groups", "the only machine"],
)
def test_kills_in_every_phase_of_a_snapshot(options: tuple[str, ...], tmp_path: Path):
    """Newest possible step each time, the same bits at the end, nothing left behind."""
    done = subprocess.run(
        [sys.executable, KILLS, *options, "--keep", tmp_path / "runs"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
