"""A snapshot is damaged in memory while nobody looks: it is never restored, and the next best one is.

Mode advise gives the time for it: the ranks have ended, and nothing is started until it is approved.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from real_run import Launcher, Run

from everstep.checkpoint import arena
from everstep.model.actions import Concluded, IncidentClosed, Refused, StartWorkers
from everstep.model.events import RestoreFailed, WorkersStopped

TRAIN = """
import os, sys, time
import uncompiled, torch, torch.distributed as dist
import everstep
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
state = everstep.State(model=model, optimizer=optimizer)
waits_at = int(sys.argv[2]) if len(sys.argv) > 2 and os.environ["EVERSTEP_GENERATION"] == "0" else -1
for step in state.steps(int(sys.argv[1])):
    if step == waits_at:
        with everstep.paused("until it is hit"):
            time.sleep(1e6)
    loss = model(torch.randn(8, 64)).square().mean()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    optimizer.step(); optimizer.zero_grad()
    if step < 20:
        time.sleep(0.03)
    print(f"step {step}", flush=True)
    print(f"loss {step} {loss.item()}", flush=True)
dist.destroy_process_group()
"""
NUM_STEPS = 40


@contextmanager
def arena_of(pid: int, rank: int) -> Iterator[int]:
    """The newest arena of the rank that this agent has, through its descriptors."""
    found: list[tuple[int, int]] = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if "memfd" not in str(link.readlink()):
                continue
            fd = os.open(link, os.O_RDWR)
        except OSError:
            continue
        contents = arena.inspect(fd)
        if contents.rank == rank and contents.snapshots:
            found.append((contents.snapshots[-1].step, fd))
        else:
            os.close(fd)
    try:
        yield max(found)[1]
    finally:
        for _, fd in found:
            os.close(fd)


def damage(pid: int, rank: int, step: int) -> None:
    """One bit of this snapshot."""
    with arena_of(pid, rank) as fd:
        contents = arena.inspect(fd)
        (snapshot,) = (snapshot for snapshot in contents.snapshots if snapshot.step == step)
        assert snapshot.sealed
        at = arena.offset_of(contents, snapshot.buffer) + snapshot.length // 3
        os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ 16]), at)


def approve(run: Run, incident: str) -> None:
    proposed = (f"a proposal of {incident}", lambda: any(r.incident == incident for r in run.actions(Refused)))
    run.until(*proposed)
    command = [sys.executable, "-m", "everstep.cli.main", "approve", incident, str(run.run_dir)]
    subprocess.run(command, check=True, timeout=60, capture_output=True)


def test_a_damaged_snapshot_is_struck_and_the_one_before_it_restored(launcher: Launcher) -> None:
    script = launcher.script(TRAIN)
    quiet = launcher.in_peace(script, NUM_STEPS)
    run = launcher.start("--mode", "advise", "--nproc-per-node", 2, script, NUM_STEPS, 20)
    run.until_step(8)
    os.kill(run.rank_pid(1), 9)
    (stopped,) = run.until("the ranks have ended", lambda: run.events(WorkersStopped))
    before, damaged = sorted(set.intersection(*(set(held.steps) for held in stopped.held)))[-2:]
    damage(run.agent_pid(), 0, damaged)
    approve(run, "i1")
    approve(run, "i2")
    assert run.wait() == 0, run.story()

    (failed,) = run.events(RestoreFailed)
    assert (failed.rank, failed.step, failed.source) == (0, damaged, "memory"), run.story()
    concluded = run.actions(Concluded)[-1]
    assert (concluded.verdict.code, concluded.verdict.ranks) == ("ES-P08", (0,))
    assert concluded.decision.rule in ("restore-another", "mode-advise")
    steps = [start.resume_step for start in run.actions(StartWorkers)]
    assert steps == [None, damaged, before]
    assert run.actions(IncidentClosed)[-1].outcome == "recovered"
    for rank in (0, 1):
        assert run.said(rank) == quiet[rank]
