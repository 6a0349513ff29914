"""A State that cannot be resumed exactly is not resumed from: the program's own checkpoint has its turn.

Real runs, a real SIGKILL. The program keeps a checkpoint of its own after each fifth step, as under torchrun.
"""

import os
import signal

from real_run import Launcher, Run

from everstep.model.actions import StartWorkers
from everstep.model.events import RestoreFailed, StateIncomplete

PROGRAM = """
import os, sys, time
import uncompiled, torch
import everstep
torch.manual_seed(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)

class Model:
    def state_dict(self): return model.state_dict()
    def load_state_dict(self, state): raise KeyError(0)

class Optimizer:
    is_comparable = True
    def state_dict(self): return optimizer.state_dict()
    def load_state_dict(self, state):
        for each in state["state"].values():
            each["momentum_buffer"] = each["momentum_buffer"].bfloat16().float()
        optimizer.load_state_dict(state)

kind = sys.argv[1]
state = everstep.State(**{
    "whole": lambda: dict(model=model, optimizer=optimizer, scheduler=scheduler),
    "forgotten": lambda: dict(model=model, optimizer=optimizer),
    "raises": lambda: dict(model=Model(), optimizer=optimizer, scheduler=scheduler),
    "loses": lambda: dict(model=model, optimizer=Optimizer(), scheduler=scheduler),
}[kind]())
first = state.step + 1
if not state.resumed and os.path.exists("own.pt"):
    own = torch.load("own.pt")
    for thing in (model, optimizer, scheduler):
        thing.load_state_dict(own[type(thing).__name__])
    first = own["step"] + 1
    print("own", first, flush=True)
step = first - 1
for _ in state.steps(1000):
    step += 1
    if step == 14:
        break
    model(torch.full((4, 8), step / 7)).square().mean().backward()
    optimizer.step(); optimizer.zero_grad(); scheduler.step()
    print("step", step, flush=True)
    if step % 5 == 4:
        things = {type(thing).__name__: thing.state_dict() for thing in (model, optimizer, scheduler)}
        torch.save({"step": step, **things}, "own.new")
        os.replace("own.new", "own.pt")
    while step == 12 and os.environ["EVERSTEP_GENERATION"] == "0":
        time.sleep(0.02)
print("end", sum(p.double().sum().item() for p in model.parameters()).hex(), flush=True)
"""


def killed(launcher: Launcher, kind: str) -> Run:
    (launcher.folder / "own.pt").unlink(missing_ok=True)
    run = launcher.start("--nproc-per-node", 1, launcher.script(PROGRAM), kind, run_dir=kind)
    run.until_step(12, world_size=1)
    os.kill(run.rank_pid(0), signal.SIGKILL)
    assert run.wait() == 0, run.story()
    run.assert_nothing_left()
    return run


def resumed(run: Run) -> list[int | None]:
    """What each generation began with."""
    return [start.resume_step for start in run.actions(StartWorkers)]


def test_what_cannot_be_resumed_exactly_is_not_resumed_from(launcher: Launcher) -> None:
    whole = killed(launcher, "whole")
    assert resumed(whole) in ([None, 11], [None, 12])  # killed in the middle of step 12, or after it
    assert not whole.events(StateIncomplete)

    forgotten = killed(launcher, "forgotten")
    assert resumed(forgotten) == [None, None]
    assert "scheduler" in forgotten.events(StateIncomplete)[0].why

    for kind in ("raises", "loses"):
        run = killed(launcher, kind)
        assert resumed(run)[0] is None
        assert resumed(run)[1] is not None  # it is tried once, and then no more
        assert resumed(run)[2:] == [None], run.story()
        assert run.actions(StartWorkers)[-1].no_snapshots
        assert [failed.is_unfit for failed in run.events(RestoreFailed)] == [True]
        assert run.said(0)["end"] == whole.said(0)["end"]
    assert forgotten.said(0)["end"] == whole.said(0)["end"]
