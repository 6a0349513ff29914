"""Foreign processes take a rank's core: the rank and they are named, and no node is evicted for it."""

import signal
import subprocess
import sys

import pytest
from real_run import Launcher

from everstep.model.actions import EvictNode, StopWorkers
from everstep.model.events import AnomalyFound

pytestmark = [pytest.mark.slow, pytest.mark.alone]  # the burners, and not other tests, must be what takes the core

TRAIN = """
import ahead, os, time
import uncompiled, torch, torch.distributed as dist
import everstep
dist.init_process_group("gloo")
rank = dist.get_rank()
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % 2]})
state = everstep.State(model=torch.nn.Linear(4, 4))
for step in state.steps(100_000):
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        pass
    dist.all_reduce(torch.ones(64))
    time.sleep(0.05)
    print("step", step, flush=True)
"""
BURN = "import ahead, os\nos.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[1]})\nwhile True: pass"

# Ranks and burners, of all that runs on this machine, where that is allowed: else, beside many others, both ranks wait
# alike, and nobody is slow.
AHEAD = """
import os
try:
    os.nice(-15)
    open("/proc/self/autogroup", "w").write("-15")  # of its session, where the kernel shares CPUs among sessions
except OSError:
    pass
"""


@pytest.mark.timeout(300)
def test_who_takes_a_ranks_core_is_named_and_nobody_evicted(launcher: Launcher) -> None:
    config = launcher.script("[policy]\nslow_round_s = 2\nwatch_hangs = false\n", "everstep.toml")
    launcher.script(AHEAD, "ahead.py")
    options = ("--config", config, "--local-nodes", 2, "--standby", 1, "--nproc-per-node", 1)
    run = launcher.start(*options, launcher.script(TRAIN), env={"TORCH_FR_BUFFER_SIZE": "128"})
    run.until("some rounds", lambda: "step 150" in run.out(), limit_s=150.0)
    burn = [sys.executable, "-c", BURN]
    burners = [subprocess.Popen(burn, cwd=launcher.folder, start_new_session=True) for _ in range(4)]
    try:
        # What else runs on this machine may take the other rank's core, and is then named before.
        found = run.until(
            "the rank", lambda: [f for f in run.events(AnomalyFound) if 1 in f.verdict.ranks], limit_s=120.0
        )
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    verdict = found[0].verdict
    assert (verdict.code, verdict.ranks) == ("ES-S03", (1,)), run.story()
    assert {each.verdict.code for each in run.events(AnomalyFound)} == {"ES-S03"}, run.story()
    assert any(f"(pid {burner.pid})" in verdict.sentence for burner in burners), verdict.sentence
    assert not run.actions(EvictNode)
    assert not run.actions(StopWorkers)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130
