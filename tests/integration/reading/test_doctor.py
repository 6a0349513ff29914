"""`everstep doctor` on a live run: what all ranks do, by place, with step, phase, state and load; nobody is stopped."""

import json
import os
import signal
import subprocess
import sys

from real_run import Launcher, Run

from everstep.model.actions import IncidentOpened
from everstep.model.events import WorkerExited

STEPS = """
import os, time
import uncompiled, torch, torch.distributed as dist
import everstep
dist.init_process_group("gloo")
rank = dist.get_rank()
state = everstep.State(model=torch.nn.Linear(4, 4))
child = os.fork() if rank == 1 else 1
if child == 0:
    while True:
        time.sleep(100)
for step in state.steps(100_000):
    time.sleep(0.05)
    dist.all_reduce(torch.ones(8))
    if rank == 0:
        print("step", step, flush=True)
"""
ONLY_SLOWNESS = "[policy]\nwatch_hangs = false\n"


def doctor(run: Run, *more: str) -> str:
    command = [sys.executable, "-m", "everstep.cli.main", "doctor", str(run.run_dir), *more]
    answer = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert answer.returncode == 0, (answer.stderr.decode(), run.story())
    return answer.stdout.decode()


def test_doctor_says_what_all_ranks_do(launcher: Launcher):
    config = launcher.script(ONLY_SLOWNESS, "everstep.toml")
    run = launcher.start("--config", config, "--nproc-per-node", 3, launcher.script(STEPS))
    log = run.run_dir / "logs/gen-0/rank-0/stdout.log"
    run.until("step 20", lambda: log.exists() and "step 20\n" in log.read_text())

    found = json.loads(doctor(run, "--json"))
    assert (found["code"], found["collected"]["missing_nodes"]) == ("ES-H00", [])
    ranks = {each["rank"]: each for each in found["per_rank"]}
    assert sorted(ranks) == [0, 1, 2]
    for each in ranks.values():
        assert each["step"] >= 20
        assert 0 <= each["step_age_s"] < 5
        assert each["phase"] == "train"
        assert each["stack_source"] in ("py-spy", "sampler")
        assert 0 <= each["load"]["cpu_share"] < 1.5
        assert each["load"]["traffic_bytes_s"] is None or each["load"]["traffic_bytes_s"] >= 0
        assert not each["native"], "there is a Python stack"
        assert each["progress"].startswith(("step ", "a collective"))
        assert each["progress_at"] > 0
    assert [len(ranks[rank]["states"]) for rank in range(3)] == [1, 2, 1], "rank 1 has a child"
    assert any("GPU" in why for why in ranks[0]["unsupported"]) or ranks[0]["gpus"]

    os.kill(run.rank_pid(2), signal.SIGSTOP)
    step = run.until("a stop", lambda: stalled(doctor(run, "--json")))
    text = run.until("the others' wait", lambda: waiting(doctor(run)))
    assert text.startswith("ES-H01 rank-stopped")
    (stopped,) = [line for line in text.splitlines() if line.startswith("2  ")]
    assert f"{step} (" in stopped
    assert "T stopped" in stopped
    (others,) = [line for line in text.splitlines() if line.startswith("0-1  ")]
    assert "waits in communication: all_reduce" in others
    assert "progress" in text.split("\n\n")[-2], "how long ago each rank did something"
    assert "unavailable  ranks 2: flight record: the rank's watch thread did not answer" in text

    os.kill(run.rank_pid(2), signal.SIGCONT)
    seen = log.read_text().count("step ")
    run.until("more steps", lambda: log.read_text().count("step ") > seen + 3)
    assert not run.events(WorkerExited)
    assert not run.actions(IncidentOpened)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130


def waiting(text: str) -> str:
    """If ranks 0 and 1 wait, and not only the one that was first: on a busy machine a step takes long."""
    return text if any(line.startswith("0-1  ") for line in text.splitlines()) else ""


def stalled(text: str) -> int | None:
    """The step of rank 2, when the others wait for it."""
    ranks = json.loads(text)["per_rank"]
    return ranks[2]["step"] if min(each["step_age_s"] for each in ranks) > 1 else None
