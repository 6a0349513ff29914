"""torch.distributed.pipelining (1F1B) over two stages, each FSDP2, or DTensor tensor parallel with DCP checkpoints."""

import argparse

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from told import OUT, RANK, Steps, block
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torchdata.stateful_dataloader import StatefulDataLoader

import everstep
from everstep.integrations.data import ResumableLoader

parser = argparse.ArgumentParser()
parser.add_argument("--inner", choices=["fsdp", "tp"], default="fsdp")
parser.add_argument("--keep", default="state")
parser.add_argument("--steps", type=int, default=30)
args = parser.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", args.inner))
stage_number, DIM = mesh.get_local_rank("pp"), 32
torch.manual_seed(7 + stage_number)
layers = [block(DIM, 0.1 if args.inner == "fsdp" else 0.0) for _ in range(2)]
if args.inner == "fsdp":
    for layer in layers:
        fully_shard(layer, mesh=mesh["fsdp"])
else:
    for layer in layers:
        parallelize_module(layer, mesh["tp"], {"1": ColwiseParallel(), "4": RowwiseParallel()})
model = nn.Sequential(*layers)
if args.inner == "fsdp":
    fully_shard(model, mesh=mesh["fsdp"])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
stage = PipelineStage(model, stage_number, 2, torch.device("cpu"), group=mesh.get_group("pp"))
schedule = Schedule1F1B(stage, 2, loss_fn=nn.functional.mse_loss)
replica = mesh.get_local_rank("fsdp") if args.inner == "fsdp" else 0
samples = torch.randn(512, 4, DIM, generator=torch.Generator().manual_seed(replica))
loader = StatefulDataLoader(samples, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(3 + replica))
steps = Steps()


def train_one(step, batch):
    steps.before(step)
    losses = []
    if stage_number == 0:
        schedule.step(batch)
    else:
        schedule.step(target=batch.roll(1, -1), losses=losses)
    value = torch.stack(losses).mean().item() if losses else sum(p.grad.to_local().norm().item() for p in shards())
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    steps.after(step, value)


def shards():
    return [p for p in model.parameters() if hasattr(p, "to_local")]


class Application:
    """As DCP's tutorial has it."""

    def state_dict(self):
        kept, optim = get_state_dict(model, optimizer)
        prefix = f"stage{stage_number}"
        return {prefix: {"model": kept, "optim": optim, "scheduler": scheduler.state_dict()}}

    def load_state_dict(self, state):
        mine = state[f"stage{stage_number}"]
        set_state_dict(model, optimizer, model_state_dict=mine["model"], optim_state_dict=mine["optim"])
        scheduler.load_state_dict(mine["scheduler"])


def batches_of(data):
    while True:
        yield from data


torch.manual_seed(100 + RANK)
last = OUT / "latest"
if args.keep in ("none", "own"):
    first = int(last.read_text()) + 1 if args.keep == "own" and last.exists() else 0
    if first:
        dcp.load({"app": Application()}, checkpoint_id=str(OUT / f"dcp-{first - 1}"))
    for step, batch in zip(range(args.steps), batches_of(loader), strict=False):
        if step < first:
            continue
        train_one(step, batch)
        if args.keep == "own" and step % 5 == 4:
            dcp.save({"app": Application()}, checkpoint_id=str(OUT / f"dcp-{step}"))
            if RANK == 0:
                last.with_suffix(".new").write_text(str(step))
                last.with_suffix(".new").replace(last)
            dist.barrier()
else:
    data = ResumableLoader(loader)
    state = everstep.State(model=model, optimizer=optimizer, scheduler=scheduler, data=data)
    for step, batch in zip(state.steps(args.steps), data.forever(), strict=False):
        train_one(step, batch)
steps.after(999, sum(p.to_local().double().sum().item() for p in shards()))
dist.barrier()
dist.destroy_process_group()
