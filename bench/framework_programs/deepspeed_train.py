"""DeepSpeed: ZeRO 0 to 3, offload, bf16 or fp16, a scheduler, clipping, dropout, a shuffled loader."""

import argparse

import deepspeed
import torch
from told import OUT, RANK, Steps, Text, Tiny
from torch.utils.data import DataLoader, DistributedSampler

import everstep
from everstep.integrations.data import ResumableLoader

parser = argparse.ArgumentParser()
parser.add_argument("--zero", type=int, default=1)
parser.add_argument("--dtype", default="bf16")
parser.add_argument("--offload", action="store_true")
parser.add_argument("--cpu-adam", action="store_true")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--keep", default="state")
parser.add_argument("--steps", type=int, default=30)
args = parser.parse_args()

if args.dtype == "fp16":  # DeepSpeed thinks that no CPU computes in it; this torch does
    deepspeed.get_accelerator().is_fp16_supported = lambda: True
torch.manual_seed(7)
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
torch.set_num_threads(1)
zero = {"stage": args.zero}
if args.offload:
    zero["offload_optimizer"] = {"device": "cpu"}
if args.offload and args.zero == 3:
    zero["offload_param"] = {"device": "cpu"}
if args.zero == 3:
    zero["stage3_param_persistence_threshold"] = 100
config = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": args.accumulate,
    "gradient_clipping": 1.0,
    "steps_per_print": 1000000,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "torch_adam": not args.cpu_adam}},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {"warmup_num_steps": 10, "total_num_steps": 200, "warmup_max_lr": 3e-3},
    },
    "zero_optimization": zero,
    "zero_force_ds_cpu_optimizer": args.cpu_adam,
    "zero_allow_untested_optimizer": True,
}
if args.dtype == "bf16":
    config["bf16"] = {"enabled": True}
if args.dtype == "fp16":
    config["fp16"] = {"enabled": True, "initial_scale_power": 24, "loss_scale_window": 4, "hysteresis": 1}
model = Tiny()
engine, optimizer, _, scheduler = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
sampler = DistributedSampler(Text(), num_replicas=engine.world_size, rank=RANK, shuffle=True, seed=3)
loader = DataLoader(Text(), batch_size=4, sampler=sampler)
steps = Steps()


def train_one(step, batch):
    steps.before(step)
    loss = engine(*batch)
    engine.backward(loss)
    engine.step()
    steps.after(step, loss.item())


torch.manual_seed(100 + RANK)
if args.keep in ("none", "own"):
    first = 0
    if args.keep == "own":
        path, client = engine.load_checkpoint(str(OUT / "checkpoints"))
        first = 0 if path is None else client["step"] + 1
    for step, batch in zip(range(args.steps), loader, strict=False):
        if step < first:
            continue
        train_one(step, batch)
        if args.keep == "own" and step % 5 == 4:
            engine.save_checkpoint(str(OUT / "checkpoints"), client_state={"step": step})
else:
    data = ResumableLoader(loader)
    objects = {"model": engine, "optimizer": optimizer, "scheduler": scheduler}
    if args.keep == "module":
        objects = {"model": engine.module, "optimizer": optimizer.optimizer, "scheduler": scheduler}
    elif args.keep == "weights":  # what is forgotten then: the partitions, and how they are stepped
        objects = {"model": engine.module}
    elif args.keep == "engine":
        objects = {"model": engine}
    elif args.keep == "apart":
        objects = {"model": engine.module, "optimizer": optimizer, "scheduler": scheduler}
    if args.keep == "state_of":
        import everstep.integrations.deepspeed

        state = everstep.integrations.deepspeed.state_of(engine, data=data)
    else:
        state = everstep.State(**objects, data=data)
    for step, batch in zip(state.steps(args.steps), data.forever(), strict=False):
        train_one(step, batch)
with torch.no_grad():
    parts = [p.ds_tensor if args.zero == 3 else p for p in engine.module.parameters()]
    steps.after(999, sum(part.double().sum().item() for part in parts))
torch.distributed.barrier()
