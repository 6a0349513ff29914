"""What hooks see of an unchanged program, in a real rank: the program itself looks at its line of the board."""

import json

import pytest
from real_run import Launcher

from everstep.model.actions import IncidentOpened
from everstep.model.events import HangSuspected, RuntimeFaulted

SEEN = """
import gc, io, json, threading
import torch
import everstep
from torch.utils.data import DataLoader, Dataset
from everstep.worker.process.board import Activity, FloatCell, IntCell
from everstep.worker.link.runtime import current
line = current().board
seen = {}
def now():
    return Activity(line._ints[IntCell.ACTIVITY]).name
def cell(name):
    return line._floats[FloatCell[name]]
class Numbers(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        seen.setdefault("in getitem", now())
        return torch.zeros(3)
class File(io.BytesIO):
    def write(self, data):
        seen["in " + threading.current_thread().name] = now()
        return super().write(data)
model, teacher = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
teacher.eval()
seen["teacher before the first step"] = now()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
class Watching(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)
optimizer.register_step_pre_hook(lambda *_: seen.__setitem__("in step", now()))
def step():
    model(torch.ones(3)).sum().backward()
    optimizer.step()
step()
seen["after a step"] = now()
teacher.eval()
seen["frozen teacher again"] = now()
for batch in DataLoader(Numbers(), batch_size=4):
    seen["in the loop"] = now()
seen["work"] = cell("WORK")
seen["data_s"] = 0 < cell("DATA_S") < 5
model.eval()
seen["eval"] = now()
for batch in DataLoader(Numbers(), batch_size=4): seen["loader in eval"] = now()
with everstep.phase("checkpoint"):
    seen["phase in eval"] = now()
seen["after phase"] = now()
model.train()
seen["train"] = now()
seen["evaluation_s"] = 0 < cell("EVALUATION_S") < 5
model.eval()
step()
seen["eval, then a step"] = now()
torch.save(model.state_dict(), File())
saving = threading.Thread(target=torch.save, args=(model.state_dict(), File()), name="another thread")
saving.start(); saving.join()
seen["checkpoint_s"] = 0 < cell("CHECKPOINT_S") < 5
with everstep.paused("for a test"):
    seen["paused"] = now()
gc.collect()
seen["gc_s"] = cell("GC_S") > 0
for _ in range(5):
    model.train(); model.eval(); step()
model.eval()
seen["eval in every step"] = now()
model.train(); step(); step()
model.eval()
seen["eval after steps without"] = now()
list(DataLoader(Numbers(), batch_size=4, num_workers=1))
seen["after a loader's process"] = now()
everstep.step(work=1000)
before = cell("WORK")
list(DataLoader(Numbers(), batch_size=4))
seen["told work"] = cell("WORK") - before
with everstep.phase("lunch"):
    pass
compiled = torch.compile(lambda x: model.eval()(x), backend="eager")
compiled(torch.ones(3))
print("SEEN", json.dumps(seen), flush=True)
"""

EXPECTED = {
    "teacher before the first step": "EVALUATION",
    "in step": "OPTIMIZER",
    "after a step": "TRAIN",
    "frozen teacher again": "TRAIN",
    "in getitem": "DATA",
    "in the loop": "TRAIN",
    "work": 24.0,
    "data_s": True,
    "eval": "EVALUATION",
    "loader in eval": "EVALUATION",
    "phase in eval": "CHECKPOINT",
    "after phase": "EVALUATION",
    "train": "TRAIN",
    "evaluation_s": True,
    "eval, then a step": "TRAIN",
    "in MainThread": "CHECKPOINT",
    "in another thread": "TRAIN",
    "checkpoint_s": True,
    "paused": "PAUSED",
    "gc_s": True,
    "eval in every step": "TRAIN",
    "eval after steps without": "EVALUATION",
    "after a loader's process": "EVALUATION",
    "told work": 0.0,
}

PAUSES = """
import time
import uncompiled, torch, torch.distributed as dist
import everstep
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(2, 2)
state = everstep.State(model=model)
for step in state.steps(60):
    time.sleep(0.03)
    if step == 30 and rank == 1:
        with everstep.paused("somebody looks"):
            time.sleep(8)
    if step == 45 and rank == 0:
        with everstep.phase("checkpoint"):
            time.sleep(8)
    dist.all_reduce(torch.ones(2))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    "twins", ["on", pytest.param("off", marks=pytest.mark.soak)]
)  # hooks set on what is loaded, and while torch is imported
def test_hooks_see_evaluations_saves_and_waits_for_data(launcher: Launcher, twins: str) -> None:
    run = launcher.start("--nproc-per-node", 1, launcher.script(SEEN), env={"EVERSTEP_TWINS": twins})
    assert run.wait() == 0, run.story()
    log = (run.run_dir / "logs/gen-0/rank-0/stdout.log").read_text()
    seen = json.loads(log.partition("SEEN ")[2])
    assert {key: seen.get(key) for key in EXPECTED} == EXPECTED
    (fault,) = run.events(RuntimeFaulted)
    assert fault.where == "everstep.phase"
    assert "'lunch'" in fault.why


def test_what_is_announced_is_no_hang(launcher: Launcher) -> None:
    config = launcher.script("[policy]\nhang_outside_s = 4.0\n", "everstep.toml")  # sleeping has no other excuse
    run = launcher.start("--config", config, "--nproc-per-node", 2, launcher.script(PAUSES))
    assert run.wait() == 0, run.story()
    assert not run.events(HangSuspected), run.story()
    assert not run.actions(IncidentOpened)
