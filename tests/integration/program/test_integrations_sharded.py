"""Sharded states over kills: FSDP2, ZeRO, and a loop in the form of torchtitan's, each rank keeping its own shard."""

import pytest
from real_run import Launcher
from resuming import assert_kills_leave_no_trace

BEGIN = """
import everstep
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(5)
sizes = (3, 8, 6, 1)
model = torch.nn.Sequential(*[
    torch.nn.Sequential(torch.nn.Linear(a, b), torch.nn.Dropout(0.2)) for a, b in zip(sizes, sizes[1:])
])
"""

LOOP = """
torch.manual_seed(RANK)
state = everstep.State(model=model, optimizer=optimizer, scheduler=scheduler)
for step in state.steps(12):
    loss = model(torch.randn(5, 3)).square().mean()
    loss.backward(); optimizer.step(); scheduler.step(); optimizer.zero_grad()
    tell(step, loss.item().hex(), scheduler.get_last_lr())
dist.barrier()
end(model.parameters())
dist.destroy_process_group()
"""

FSDP2 = """
for layer in model: fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
"""

FSDP1 = """
from torch.distributed.fsdp import FullyShardedDataParallel
model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
"""

ZERO = """
from torch.distributed.optim import ZeroRedundancyOptimizer
model = DistributedDataParallel(model)
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
"""

TENSOR_PARALLEL = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
model = parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
"""

TITAN = """
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict, get_optimizer_state_dict, set_model_state_dict, set_optimizer_state_dict, StateDictOptions
)
from torchdata.stateful_dataloader import StatefulDataLoader
from everstep.integrations.data import ResumableLoader
from everstep.integrations.dcp import state_of

class ModelWrapper:
    def state_dict(self): return get_model_state_dict(model)
    def load_state_dict(self, state): set_model_state_dict(model, state, options=StateDictOptions(strict=False))

class Optimizers:
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    def state_dict(self): return get_optimizer_state_dict(model, optimizer, options=self.options)
    def load_state_dict(self, state): set_optimizer_state_dict(model, optimizer, state, options=self.options)

class TrainState:
    step = 0
    def state_dict(self): return {"step": torch.tensor(self.step)}
    def load_state_dict(self, state): self.step = int(state["step"])

train_state = TrainState()
data = ResumableLoader(StatefulDataLoader(range(RANK * 100, RANK * 100 + 40), batch_size=4, shuffle=True))
states = {
    "model": ModelWrapper(), "optimizer": Optimizers(), "lr_scheduler": scheduler, "train_state": train_state,
    "dataloader": data, "tokens_seen": 0, "ema": {"mean": torch.zeros(2)},
}
mean = states["ema"]["mean"]
torch.manual_seed(RANK)
state = state_of(states)
batches = data.forever()
state.begin()
while train_state.step < 12:
    train_state.step += 1
    ids = next(batches)
    loss = (model(torch.randn(4, 3)) * ids[:, None] / 100).square().mean()
    loss.backward(); optimizer.step(); scheduler.step(); optimizer.zero_grad()
    states["tokens_seen"] += ids.numel()
    mean.mul_(0.9).add_(loss.item())
    tell(train_state.step - 1, *ids.tolist(), loss.item().hex(), states["tokens_seen"], mean[0].item().hex())
    state.complete_step()
state.finish()
dist.barrier()
end(model.parameters())
dist.destroy_process_group()
"""

ACCELERATE = """
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
import everstep.integrations.accelerate as everstep_accelerate
from everstep.integrations.data import ResumableLoader

class Samples(torch.utils.data.Dataset):
    def __len__(self): return 39
    def __getitem__(self, index): return index, torch.full((3,), float(index)) + torch.rand(3)

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
set_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(3, 9), torch.nn.Dropout(0.3), torch.nn.Linear(9, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
loader = DataLoader(Samples(), batch_size=4, shuffle=True)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
data = ResumableLoader(loader)
state = everstep_accelerate.state_of(accelerator, data=data)
state.begin()
number = state.step
for epoch in range(data.epoch, 3):
    for ids, values in data:
        with accelerator.accumulate(model):
            loss = model(values).square().mean()
            accelerator.backward(loss)
            optimizer.step(); scheduler.step(); optimizer.zero_grad()
        lr = scheduler.get_last_lr()
        tell(f"{state.step + 1}:{data.position}", epoch, *ids.tolist(), loss.item().hex(), lr)
        if accelerator.sync_gradients:
            state.complete_step()
state.finish()
accelerator.wait_for_everyone()
end(model.parameters())
accelerator.end_training()
"""

SCRIPTS = [
    pytest.param(BEGIN + FSDP2 + TITAN, id="torchtitan"),
    pytest.param(BEGIN + FSDP2 + LOOP, id="fsdp2", marks=pytest.mark.soak),
    pytest.param(
        BEGIN + TENSOR_PARALLEL + LOOP.replace("manual_seed(RANK)", "manual_seed(1)"), id="tp", marks=pytest.mark.soak
    ),
    pytest.param(BEGIN + ZERO + LOOP, id="zero", marks=pytest.mark.soak),
    pytest.param(BEGIN + FSDP1 + LOOP, id="fsdp1", marks=pytest.mark.soak),
    pytest.param(ACCELERATE, id="accelerate", marks=pytest.mark.soak),
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_sharded_states_go_on_at_the_very_next_step(launcher: Launcher, script: str) -> None:
    assert_kills_leave_no_trace(launcher, script, kills=((3, 1), (7, 0)), num_ranks=2)


@pytest.mark.soak
def test_accelerate_goes_on_at_the_very_next_step(launcher: Launcher) -> None:
    assert_kills_leave_no_trace(launcher, ACCELERATE, kills=((3, 0), (7, 0)))
