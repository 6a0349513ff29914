"""`everstep run` with a persistent tier, end to end: SIGTERM with notice saves the last step, and another run goes on
from it as if nothing had been.
"""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from real_run import Launcher

from everstep.checkpoint.persist.store.scanning import scan
from everstep.model.actions import Finish, PersistSnapshot, StartWorkers
from everstep.model.events import CheckpointCommitted, CheckpointsFound, WorkerExited, WorkersStopped

PROGRAM = """
import sys, time
import uncompiled, torch
import everstep

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
state = everstep.State(model=model, optimizer=optimizer)
for step in state.steps(int(sys.argv[1])):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, loss.item().hex(), flush=True)
    time.sleep(float(sys.argv[2]))
"""


def lines_of(text: str) -> dict[int, str]:
    """Step -> its loss, to the last bit."""
    found = (line.rpartition("]:")[2].split() for line in text.splitlines() if "step " in line)
    return {int(words[1]): words[2] for words in found if len(words) == 3 and words[0] == "step"}


def test_sigterm_with_notice_saves_the_last_step_and_another_run_goes_on_from_it(launcher: Launcher, tmp_path: Path):
    script, root = launcher.script(PROGRAM), tmp_path / "ck"
    flags = ("--checkpoint-dir", root, "--checkpoint-every", "1s")
    run = launcher.start(*flags, script, 10_000, 0.02)
    first = run.until("a checkpoint", lambda: [e for e in run.events(CheckpointCommitted) if e.checkpoint])[0]
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 128 + signal.SIGTERM, run.story()
    held = {step for event in run.events(WorkersStopped) for each in event.held for step in each.steps}
    last = scan(str(root))[-1]
    assert last.step == max(held), run.story()
    assert last.step > first.step
    assert run.actions(Finish)[-1].outcome == "stopped"
    assert f"checkpoint of step {first.step} in {root}" in run.err().replace(",", "")

    num_steps = last.step + 8
    again = launcher.start(*flags, script, num_steps, 0.0, run_dir="again")
    assert again.wait() == 0, again.story()
    found = again.events(CheckpointsFound)[0]
    assert found.checkpoints[-1].step == last.step
    start = again.actions(StartWorkers)[0]
    assert (start.resume_step, start.restore_path) == (last.step, last.path)
    assert f"resumes after step {last.step}" in again.err().replace(",", "")
    assert scan(str(root))[-1].step == num_steps - 1, "success saves the last step too"

    plain = subprocess.run(
        [sys.executable, script, str(num_steps), "0"], capture_output=True, text=True, check=True, timeout=60
    )
    expected, before, after = lines_of(plain.stdout), lines_of(run.out()), lines_of(again.out())
    assert sorted(after) == list(range(last.step + 1, num_steps))
    assert {**before, **after} == {step: expected[step] for step in {**before, **after}}


def test_a_folder_that_cannot_be_used_ends_it_before_anything_starts(launcher: Launcher, tmp_path: Path):
    (tmp_path / "ck").write_text("a file")
    run = launcher.start("--checkpoint-dir", tmp_path / "ck", launcher.script(PROGRAM), 3, 0)
    assert run.wait() == 2
    assert f"--checkpoint-dir {tmp_path}/ck cannot be used" in run.err()
    assert not run.run_dir.exists()


@pytest.mark.soak
def test_two_nodes_write_their_parts_and_success_saves_the_last_step(launcher: Launcher, tmp_path: Path):
    root = tmp_path / "ck"
    flags = ("--local-nodes", 2, "--checkpoint-dir", root, "--checkpoint-every", "2s")
    run = launcher.start(*flags, launcher.script(PROGRAM), 300, 0.03)
    assert run.wait(180.0) == 0, run.story()
    assert len({a.node for a in run.actions(PersistSnapshot)}) == 2
    assert [c.step for c in scan(str(root))][-1] == 299
    assert all(e.exit.code == 0 for e in run.events(WorkerExited))
