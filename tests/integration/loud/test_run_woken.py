"""A whole node that stands still in the middle of a save, is replaced, and wakes: nothing that it goes on with counts.

Nobody can end it meanwhile, because the launcher stands still as well: as if its machine could not be reached. The
process that writes or commits stops itself right before the act in question, by SIGSTOP.
"""

import os
import signal
import time
from pathlib import Path

import pytest
from real_run import Launcher, Run

from everstep.checkpoint.persist.form import form
from everstep.checkpoint.persist.read.verifying import verify
from everstep.checkpoint.persist.store.scanning import find_steps
from everstep.checkpoint.persist.store.storage import open_storage
from everstep.engines import freezing
from everstep.model.actions import SettleDoubt, StartWorkers
from everstep.model.events import CheckpointCommitted, NodeLost, ProgressReported

TRAIN = """
import os, time
import uncompiled, torch, everstep
torch.manual_seed(0)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in everstep.State(model=model, optimizer=optimizer).steps(1_000_000):
    loss = model(torch.ones(4, 16)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print("step", step, time.time(), flush=True)
    time.sleep(0.1)
"""

HOLD = """
import os, sys
if {verb!r} in sys.orig_argv and os.path.exists({hold!r}):
    import signal
    from everstep.checkpoint.persist.store.storage import FolderStorage
    real = getattr(FolderStorage, {act!r})
    def stopping(self, name, *more):
        if {part!r} in name and os.path.exists({hold!r}):
            with open({held!r}, "w") as file:
                file.write(name)
            os.kill(os.getpid(), signal.SIGSTOP)
        return real(self, name, *more)
    setattr(FolderStorage, {act!r}, stopping)
"""
START_S = 600.0  # of processes that others starve; only failures wait so long


def lines(run: Run, generation: int, rank: int) -> list[list[str]]:
    path = run.run_dir / f"logs/gen-{generation}/rank-{rank}/stdout.log"
    text = path.read_text() if path.exists() else ""
    return [line.split() for line in text.split("\n")[:-1] if line.startswith("step ")]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def manifests(tier: Path) -> dict[int, form.Manifest]:
    return {one.step: one.manifest for one in find_steps(open_storage(str(tier))) if one.manifest is not None}


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("verb", "act", "part"), [("commit", "move_folder", "-g0-"), ("write", "write", "rank-00000")])
def test_a_save_that_stood_still_is_no_checkpoint_when_it_goes_on(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, verb: str, act: str, part: str
):
    hold, held, tier = (launcher.folder / name for name in ("hold", "held", "tier"))
    hooks = launcher.folder / "hooks"
    hooks.mkdir()
    code = HOLD.format(verb=verb, act=act, part=part, hold=str(hold), held=str(held))
    (hooks / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(hooks))
    saves = ("--checkpoint-dir", tier, "--checkpoint-every", "1s", "--checkpoint-keep", 20)
    run = launcher.start("--local-nodes", 2, "--standby", 1, *saves, launcher.script(TRAIN))
    run.until("a checkpoint", lambda: run.events(CheckpointCommitted), START_S)
    run.until("the standby", lambda: len(list((run.run_dir / "nodes").glob("*/agent.log"))) == 3, START_S)
    hold.touch()
    run.until("a save that stands still", held.exists, START_S)
    node = next(action.node for action in run.actions(StartWorkers) if action.slot == 0)
    agent, rank = run.agent_pid(node), run.rank_pid(0)
    os.kill(run.process.pid, signal.SIGSTOP)
    freezing.freeze(agent)
    hold.unlink()
    run.until("the loss", lambda: run.events(NodeLost), START_S)
    run.until("new steps", lambda: len(lines(run, 1, 0)) > 3, START_S)
    (resumed,) = {a.resume_step for a in run.actions(StartWorkers) if a.generation == 1}
    assert resumed is not None
    run.until("its own checkpoint", lambda: any(m.generation == 1 for m in manifests(tier).values()), START_S)

    freezing.thaw(agent)
    run.until("its end", lambda: is_gone(agent) and is_gone(rank), START_S)
    ended_at = time.time()
    since = [record for record in run.records() if record.at >= run.events(NodeLost)[0].at]
    assert not [r for r in since if isinstance(r.event, ProgressReported) and r.event.node == node]
    assert not [a for r in since for a in r.actions if isinstance(a, SettleDoubt) and a.node == node]
    done = len(lines(run, 1, 0))
    run.until("more steps", lambda: len(lines(run, 1, 0)) > done + 15, START_S)
    assert max(float(line[2]) for line in lines(run, 0, 0)) < ended_at
    for step, manifest in manifests(tier).items():
        assert manifest.generation == 1 or step <= resumed, (step, manifest.generation, resumed)
        assert verify(str(tier), step) == []
    assert not list((tier / ".writing").glob("*-g0-*")) or verb == "write"

    os.kill(run.process.pid, signal.SIGCONT)
    os.kill(run.rank_pid(1, 1), signal.SIGKILL)
    run.until("a third generation", lambda: len(lines(run, 2, 0)) > 3, START_S)
    (again,) = {a.resume_step for a in run.actions(StartWorkers) if a.generation == 2}
    assert again is not None
    assert again > resumed, "from what the living generation has done; its ranks are not in step"
    run.process.terminate()
    run.wait(120)
