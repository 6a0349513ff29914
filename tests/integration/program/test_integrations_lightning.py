"""PyTorch Lightning over kills: losses, samples, schedulers and parameters of a run that was never interrupted."""

import pytest
from real_run import Launcher
from resuming import assert_kills_leave_no_trace, run_alone

TRAIN = """
import warnings; warnings.simplefilter("ignore")
import logging; logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
import pytorch_lightning as pl
import torchmetrics
from torch.utils.data import DataLoader
from everstep.integrations.lightning import EverstepCallback

class Samples(torch.utils.data.Dataset):
    def __len__(self): return 42
    def __getitem__(self, index): return index, torch.full((3,), float(index)) + torch.rand(3)

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.seen, self.epochs = torchmetrics.MeanMetric(), {}
        self.body = torch.nn.Sequential(torch.nn.Linear(3, 9), torch.nn.Dropout(0.3), torch.nn.Linear(9, 1))
    def training_step(self, batch, number):
        ids, values = batch
        loss = self.body(values).square().mean()
        lr = self.optimizers().param_groups[0]["lr"]
        tell(f"{self.global_step}:{number}", self.current_epoch, *ids.tolist(), loss.item().hex(), lr)
        self.log("loss", loss)
        self.log("mean", loss, on_step=True, on_epoch=True)
        self.log("biggest", loss, on_step=False, on_epoch=True, reduce_fx="max")
        self.seen.update(loss.detach())
        self.log("seen", self.seen, on_step=False, on_epoch=True)
        return loss
    def on_train_epoch_end(self):
        found = {name: value.item().hex() for name, value in sorted(self.trainer.callback_metrics.items())}
        self.epochs[self.current_epoch] = found
        tell(f"{self.global_step - 1}:epoch", self.current_epoch, found)
    def validation_step(self, batch, number):
        self.log("val", self.body(batch[1]).square().mean())
    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            loss = self.trainer.callback_metrics["val"].item().hex()
            tell(f"{max(self.global_step - 1, 0)}:val", self.global_step, loss)
    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
        step = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
        return [optimizer], [
            {"scheduler": step, "interval": "step"}, {"scheduler": plateau, "monitor": "val", "interval": "epoch"}
        ]

pl.seed_everything(3, verbose=False)
module = Module()
trainer = pl.Trainer(
    accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, callbacks=[EverstepCallback()], MORE
)
checkpoint = os.environ.get("RESUME")
trainer.fit(module, DataLoader(Samples(), 4, shuffle=True), DataLoader(Samples(), 8), ckpt_path=checkpoint)
if os.environ.get("SAVE"):
    trainer.save_checkpoint(os.environ["SAVE"])
found = {name: value.item() for name, value in sorted(trainer.logged_metrics.items())}
end(module.parameters(), trainer.global_step, trainer.current_epoch, found, trainer.num_val_batches)
"""


def text(more: str) -> str:
    return TRAIN.replace("MORE", more)


@pytest.mark.soak
def test_fit_goes_on_at_the_very_next_step(launcher: Launcher) -> None:
    more = "max_epochs=3, accumulate_grad_batches=2, val_check_interval=4"
    assert_kills_leave_no_trace(launcher, text(more), kills=((2, 0), (8, 0)))


@pytest.mark.soak
def test_metrics_of_an_epoch_whose_last_step_was_before_the_restart(launcher: Launcher) -> None:
    more = "max_epochs=3, accumulate_grad_batches=2"
    assert_kills_leave_no_trace(launcher, text(more), kills=((5, 0), (11, 0)))


@pytest.mark.soak
@pytest.mark.parametrize(
    "more",
    [
        pytest.param("max_steps=15", id="steps"),
        pytest.param("max_epochs=3", id="epochs"),
        pytest.param("max_epochs=3, limit_train_batches=5", id="limited"),
    ],
)
def test_fit_on_two_ranks(launcher: Launcher, more: str) -> None:
    assert_kills_leave_no_trace(launcher, text(more), kills=((2, 1), (5, 0), (9, 1)), num_ranks=2)


@pytest.mark.soak
def test_fit_that_began_from_its_own_checkpoint(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(launcher.folder / "epoch.ckpt")
    monkeypatch.setenv("SAVE", path)
    run_alone(launcher, text("max_epochs=1"), "before")
    monkeypatch.delenv("SAVE")
    monkeypatch.setenv("RESUME", path)
    trail = assert_kills_leave_no_trace(launcher, text("max_epochs=3"), kills=((14, 0), (20, 0)))
    assert min(int(step.split(":")[0]) for step in trail.steps(0)) == 11
