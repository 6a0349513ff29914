"""Hangs end to end: four real gloo ranks with 0.1 s steps, made to hang on purpose, seen, blamed and restarted."""

import json
import signal
import subprocess
import sys

import pytest
from lateness import Lateness
from real_run import Launcher, Run

from everstep.model.actions import Concluded, IncidentClosed, IncidentOpened, StartWorkers
from everstep.model.events import HangSuspected, ProgressReported
from everstep.model.record import Record
from everstep.probes.rank.stack import find_py_spy

STEPS = """
import sys, time
import uncompiled, torch, torch.distributed as dist
import everstep
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(4, 4)
state = everstep.State(model=model)
for step in state.steps(int(sys.argv[1])):
    time.sleep(0.09)
    dist.all_reduce(torch.ones(8))
    if rank == 0:
        print("step", step, flush=True)
dist.destroy_process_group()
"""


CASES = {"stop": "ES-H01", "python-loop": "ES-H07", "native-call": "ES-H08"}


def until_closed(run: Run) -> list[Record]:
    """Up to the end of the first incident: what comes while the run is being ended is not looked at."""
    records = run.records()
    ends = [n for n, record in enumerate(records) if any(isinstance(a, IncidentClosed) for a in record.actions)]
    return records[: ends[0] + 1]


@pytest.mark.skipif(find_py_spy() is None, reason="py-spy is not installed")
@pytest.mark.parametrize("kind", ["stop", "python-loop", pytest.param("native-call", marks=pytest.mark.soak)])
def test_a_hang_is_seen_blamed_and_recovered(launcher: Launcher, kind: str):
    # A rank that computes is waited for a minute: the loop would have a core of this machine until then.
    config = launcher.script("[policy]\nhang_computing_s = 8.0\n", "everstep.toml")
    run = launcher.start("--config", config, "--nproc-per-node", 4, launcher.script(STEPS), 100_000)
    log = run.run_dir / "logs/gen-0/rank-0/stdout.log"
    run.until("step 40", lambda: log.exists() and "step 40\n" in log.read_text())
    with Lateness() as late:
        result = run.drill(kind, 2)
    assert result.passed, (result, run.story())
    assert result.detect_s is not None
    assert result.detect_s < 6.0 + late.seconds
    assert result.lost_steps == 0
    records = until_closed(run)
    actions = [action for record in records for action in record.actions]
    verdict = [action for action in actions if isinstance(action, Concluded)][-1].verdict
    assert (verdict.code, verdict.ranks) == (CASES[kind], (2,)), verdict
    closed = next(action for action in actions if isinstance(action, IncidentClosed))
    assert closed.incident == result.incident
    (suspected,) = (record.event for record in records if isinstance(record.event, HangSuspected))
    asked = next(r.event.at for r in run.records() if type(r.event).__name__ == "DrillRequested")
    print(f"{kind}: seen after {suspected.at - asked:.2f} s, training after {closed.recovered_at - asked:.2f} s")
    assert suspected.at - asked < 6.0 + late.seconds
    assert run.actions(StartWorkers)[-1].resume_step is not None
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130
    assert {path.name for path in (run.run_dir / "evidence/i1/gen-0").iterdir()} >= {f"rank-{r}.json" for r in range(4)}


IRREGULAR = """
import random, sys, time
import uncompiled, torch, torch.distributed as dist
import everstep
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(512, 512)
state = everstep.State(model=model)
dice = random.Random(rank)
for step in state.steps(130):
    time.sleep(dice.uniform(0.01, 0.08))  # sequences of unequal length
    dist.all_reduce(torch.ones(8))
    if step == 60 and rank == 1:  # one rank evaluates for longer than the window, the others wait
        end = time.monotonic() + 3.5
        while time.monotonic() < end:
            with torch.no_grad():
                torch.relu(model(torch.ones(256, 512))).sum().item()
    if step == 90 and rank == 2:  # one rank waits for something outside, without using the processor
        time.sleep(4)
    if step in (40, 100):  # a save that is slower than a step
        torch.save(model.state_dict(), sys.argv[1] + f"/save-{rank}.pt")
        time.sleep(0.7)
dist.barrier()
if rank == 0:
    time.sleep(4)  # what comes after the loop may take long
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.soak
def test_a_healthy_irregular_job_triggers_nothing(launcher: Launcher):
    run = launcher.start("--nproc-per-node", 4, launcher.script(IRREGULAR), launcher.folder)
    run.until("steps", lambda: any((e.accounts[0].last_step or 0) > 5 for e in run.events(ProgressReported)))
    command = [sys.executable, "-m", "everstep.cli.main", "doctor", str(run.run_dir), "--json"]
    answer = subprocess.run(command, capture_output=True, timeout=60, check=False)
    report = json.loads(answer.stdout or b"{}")
    assert (report.get("code"), report.get("collected", {}).get("missing_nodes")) == ("ES-H00", []), (
        report,
        answer.stderr,
    )
    assert run.wait() == 0, run.story()
    assert not run.events(HangSuspected), run.story()
    assert not run.actions(IncidentOpened)
