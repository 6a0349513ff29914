"""Things that people put round a model or an optimizer: compiled, LoRA, averaged, two optimizers, FSDP1, 8 bits."""

import argparse

import torch
import torch.distributed as dist
from told import RANK, Steps, Text, Tiny
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler

import everstep
from everstep.integrations.data import ResumableLoader

parser = argparse.ArgumentParser()
parser.add_argument("--kind", required=True)
parser.add_argument("--keep", default="state")
parser.add_argument("--steps", type=int, default=30)
args = parser.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(7)


class Sam(torch.optim.Optimizer):
    """Sharpness-aware: climbs, and steps its base optimizer with the gradients from there."""

    def __init__(self, parameters, rho=0.05):
        super().__init__(list(parameters), {"rho": rho})
        self.base = torch.optim.AdamW(self.param_groups[0]["params"], lr=3e-3)

    @torch.no_grad()
    def climb(self):
        for p in self.param_groups[0]["params"]:
            self.state[p]["e"] = p.grad * (self.param_groups[0]["rho"] / (p.grad.norm() + 1e-12))
            p.add_(self.state[p]["e"])

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            p.sub_(self.state[p]["e"])
        self.base.step()


bare = Tiny()
if args.kind == "lora":
    from peft import LoraConfig, get_peft_model

    bare = get_peft_model(bare, LoraConfig(r=4, target_modules=r".*layers\.\d+\.[14]", lora_dropout=0.1))
if args.kind in ("fsdp1", "fsdp1-orig"):
    model = FullyShardedDataParallel(bare, device_id=torch.device("cpu"), use_orig_params=args.kind == "fsdp1-orig")
else:
    model = DistributedDataParallel(bare)
trained = [p for p in model.parameters() if p.requires_grad]
objects = {}
if args.kind == "compiled":
    model = torch.compile(model, backend="aot_eager")
if args.kind == "ema":
    objects["ema"] = ema = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
if args.kind == "sam":
    optimizers = [Sam(trained)]
    objects |= {"base": optimizers[0].base}
elif args.kind == "muon":
    flat = [p for p in trained if p.ndim != 2]
    optimizers = [torch.optim.Muon([p for p in trained if p.ndim == 2], lr=3e-3), torch.optim.AdamW(flat, lr=3e-3)]
elif args.kind == "bnb":
    import bitsandbytes

    optimizers = [bitsandbytes.optim.AdamW8bit(trained, lr=3e-3, min_8bit_size=64)]
else:
    optimizers = [torch.optim.AdamW(trained, lr=3e-3)]
if args.kind == "gan":
    critic = DistributedDataParallel(Tiny(layers=1))
    objects["critic"] = critic
    optimizers.append(torch.optim.RMSprop(critic.parameters(), lr=1e-3))
sampler = DistributedSampler(Text(), shuffle=True, seed=3)
data = ResumableLoader(DataLoader(Text(), batch_size=4, sampler=sampler))
objects |= {"model": model, **{f"optimizer{number}": each for number, each in enumerate(optimizers)}, "data": data}
steps = Steps()


def train_one(step, batch):
    steps.before(step)
    loss = model(*batch)
    if args.kind == "gan":
        loss = loss + critic(*batch)
    loss.backward()
    if args.kind == "sam":
        optimizers[0].climb()
        optimizers[0].zero_grad()
        model(*batch).backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    if args.kind == "ema":
        ema.update_parameters(model.module)
    value = loss.item()
    if args.kind == "ema":
        value += sum(p.double().sum().item() for p in ema.parameters()) * 1e-6
    steps.after(step, value)


torch.manual_seed(100 + RANK)
if args.keep == "none":
    for step, batch in zip(range(args.steps), data, strict=False):
        train_one(step, batch)
else:
    state = everstep.State(**objects)
    for step, batch in zip(state.steps(args.steps), data.forever(), strict=False):
        train_one(step, batch)
steps.after(999, sum(p.double().sum().item() for p in model.parameters()))
dist.barrier()
dist.destroy_process_group()
