"""TensorBoard's own reading of a training that was killed: a curve without a step twice, and a mark."""

from pathlib import Path

import pytest
from real_run import launching

TRAIN = """
import os, signal
import uncompiled, torch
from torch.utils.tensorboard import SummaryWriter
import everstep
from everstep.integrations import tracking

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = everstep.State(model=model, optimizer=optimizer)
writer = SummaryWriter("tb", purge_step=tracking.purge_step(), flush_secs=1)
tracking.log_to(writer)
for step in state.steps(40):
    loss = model(torch.ones(2, 4)).square().sum()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    everstep.step(loss=loss.detach())
    writer.add_scalar("loss", loss.item(), step)
    if step == 25 and not state.resumed:
        writer.flush()
        os.kill(os.getpid(), signal.SIGKILL)
writer.close()
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_killed_training_in_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with launching(tmp_path) as launcher:
        run = launcher.start("--nproc-per-node", 1, launcher.script(TRAIN))
        assert run.wait() == 0, run.story()
        assert "everstep" not in run.out(), "nothing of ours is told to the program's output"

    def shown(folder: Path) -> EventAccumulator:
        return EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()

    program, ours = shown(tmp_path / "tb"), shown(tmp_path / "tb" / "everstep")
    assert [each.step for each in program.Scalars("loss")] == list(range(40)), "purge_step() is the right one"
    steps = [each.step for each in ours.Scalars("everstep/loss")]
    assert steps == sorted(set(steps))
    assert steps[-1] == 39
    (mark,) = program.Tensors("everstep/restarts/text_summary")
    text = mark.tensor_proto.string_val[0].decode()
    assert text.startswith(f"Restart 1, with step {mark.step}. Why:")
    assert "rank 0 on n0 was killed by SIGKILL" in text
