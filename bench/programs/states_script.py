"""One training state, named by what it is made of: WRAP/PRECISION/OPTIMIZER/EXTRAS, and what its author forgot to keep.

    python states_script.py ddp/fp32/adamw/ema+cosine --forget ema --steps 24

Writes a line per step to `$TRAIL/RANK` (step, loss, process id). Started by `bench/states.py`.
"""

import argparse
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "tests" / "integration"))
if not any(word in sys.argv[1] for word in ("compiled", "torchgen")):  # those need what it leaves out
    import uncompiled  # noqa: F401 - torch without its compiler starts in half the time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import everstep

RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False)
        self.norm, self.dropout = nn.BatchNorm1d(32), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.dropout(self.norm(self.first(x)).relu()))


class Lora(nn.Module):
    """A frozen network and a low-rank correction of it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Net().requires_grad_(False)
        self.down, self.up = nn.Linear(16, 2, bias=False), nn.Linear(2, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


class Sam(torch.optim.Optimizer):
    """Two steps in one, as public implementations do it: the base optimizer's state is another object's."""

    def __init__(self, params: list[nn.Parameter]) -> None:
        super().__init__(params, {"lr": 0.05})
        self.base = torch.optim.SGD(self.param_groups, lr=0.05, momentum=0.9)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.clone()
                p.add_(p.grad, alpha=0.05)

    @torch.no_grad()
    def step(self, _closure: object = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["old"])
        self.base.step()

    def state_dict(self) -> dict:
        return {"own": super().state_dict(), "base": self.base.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        super().load_state_dict(state["own"])
        self.base.load_state_dict(state["base"])
        self.base.param_groups = self.param_groups


class Lookahead:
    """Slow weights every fifth step, in a list that no module has."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.num_steps = optimizer, 0
        self.slow = [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]

    def step(self) -> None:
        self.optimizer.step()
        self.num_steps += 1
        if self.num_steps % 5 == 0:
            params = [p for group in self.optimizer.param_groups for p in group["params"]]
            with torch.no_grad():
                for slow, p in zip(self.slow, params, strict=True):
                    slow.add_(p - slow, alpha=0.5)
                    p.copy_(slow)

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def state_dict(self) -> dict:
        return {"inner": self.optimizer.state_dict(), "slow": self.slow, "steps": self.num_steps}

    def load_state_dict(self, state: dict) -> None:
        self.optimizer.load_state_dict(state["inner"])
        self.slow, self.num_steps = state["slow"], state["steps"]


class Shadow:
    """An average of all weights, as a dictionary."""

    def __init__(self, model: nn.Module) -> None:
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model: nn.Module) -> None:
        for name, p in model.named_parameters():
            self.weights[name].data.mul_(0.9).add_(p.detach(), alpha=0.1)

    def state_dict(self) -> dict:
        return self.weights

    def load_state_dict(self, state: dict) -> None:
        self.weights = state


class Keeper:
    """A class of the program's own that keeps values: those of `get`, given back to `put`."""

    def __init__(self, get: Callable[[], Any], put: Callable[[Any], Any]) -> None:
        self.state_dict, self.load_state_dict = get, put


OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda params: torch.optim.Adam(params, lr=1e-2, amsgrad=True),
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2),
    "fused": lambda params: torch.optim.AdamW(params, lr=1e-2, fused=True),
    "adafactor": lambda params: torch.optim.Adafactor(params, lr=1e-2),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=1e-3, momentum=0.9),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=1e-2),
    "lbfgs": lambda params: torch.optim.LBFGS(params, lr=0.1, max_iter=3),
    "muon": lambda params: torch.optim.Muon([p for p in params if p.ndim == 2], lr=1e-3),
    "sam": Sam,
    "lookahead": lambda params: Lookahead(torch.optim.AdamW(params, lr=1e-2)),
}


def wrapped(wrap: str, model: nn.Module) -> nn.Module:
    if wrap in ("ddp", "zero"):
        return nn.parallel.DistributedDataParallel(model)
    if wrap == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model.first)
        fully_shard(model)
    if wrap == "tp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (SIZE,))
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        return parallelize_module(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)), mesh, plan)
    if wrap == "compiled":
        return torch.compile(model, backend="eager")
    return model


def build(wrap: str, precision: str, optimizer: str, extras: set[str]) -> SimpleNamespace:
    torch.manual_seed(5 + RANK * ("alone" in extras))
    kit = SimpleNamespace()
    model = Lora() if wrap == "lora" else Net()
    kit.model = wrapped(wrap, model.bfloat16() if precision in ("bf16", "masters") else model)
    params = [p for p in kit.model.parameters() if p.requires_grad]
    kit.masters = [p.detach().float().requires_grad_() for p in params] if precision == "masters" else []
    if wrap == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        kit.optimizer = ZeroRedundancyOptimizer(params, torch.optim.AdamW, lr=1e-2)
    else:
        kit.optimizer = OPTIMIZERS[optimizer](kit.masters or params)
    inner = getattr(kit.optimizer, "optimizer", kit.optimizer)
    schedules = torch.optim.lr_scheduler
    if "cosine" in extras:
        kit.scheduler = schedules.CosineAnnealingLR(inner, 600)
    if "warmup" in extras:
        kit.scheduler = schedules.SequentialLR(inner, [schedules.LinearLR(inner), schedules.StepLR(inner, 7)], [9])
    if "plateau" in extras:
        kit.scheduler = schedules.ReduceLROnPlateau(inner, patience=1)
    if precision == "fp16":
        kit.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=4)
    if "ema" in extras:
        kit.ema = torch.optim.swa_utils.AveragedModel(kit.model)
    if "shadow" in extras:
        kit.shadow = Shadow(kit.model)
    if "gan" in extras:
        kit.critic = nn.Linear(16, 1)
        kit.critic_optimizer = torch.optim.RMSprop(kit.critic.parameters(), lr=1e-3)
    if "stats" in extras:
        kit.stats = nn.BatchNorm1d(16, affine=False)
    if "teacher" in extras:
        kit.teacher = Net().eval().requires_grad_(False)
    kit.torchgen = torch.Generator().manual_seed(1) if "torchgen" in extras else None
    kit.numpygen = np.random.default_rng(2) if "numpygen" in extras else None
    kit.pythongen = random.Random(3) if "pythongen" in extras else None
    return kit


def kept(kit: SimpleNamespace, forget: set[str]) -> dict:
    things = {name: thing for name, thing in vars(kit).items() if name != "teacher" and thing is not None}
    if "torchgen" in things:
        things["torchgen"] = Keeper(kit.torchgen.get_state, kit.torchgen.set_state)
    if "numpygen" in things:
        bits = kit.numpygen.bit_generator
        things["numpygen"] = Keeper(lambda: {"bits": bits.state}, lambda state: setattr(bits, "state", state["bits"]))
    if "pythongen" in things:
        things["pythongen"] = Keeper(kit.pythongen.getstate, kit.pythongen.setstate)
    if masters := things.pop("masters"):

        def put(values: list[torch.Tensor]) -> None:
            with torch.no_grad():
                for master, value in zip(masters, values, strict=True):
                    master.copy_(value)

        things["masters"] = Keeper(lambda: masters, put)
    if "base" in forget:  # of SAM: what its own class would forget, if it did not think of it
        things["optimizer"] = Keeper(
            lambda: torch.optim.Optimizer.state_dict(kit.optimizer),
            lambda state: torch.optim.Optimizer.load_state_dict(kit.optimizer, state),
        )
    if "slow" in forget:
        things["optimizer"] = kit.optimizer.optimizer
    return {name: thing for name, thing in things.items() if name not in forget}


def loss_of(kit: SimpleNamespace, x: torch.Tensor) -> torch.Tensor:
    target = kit.teacher(x).tanh() if hasattr(kit, "teacher") else x.roll(1, 1)
    dtype = next(kit.model.parameters()).dtype
    with torch.autocast("cpu", torch.float16, enabled=hasattr(kit, "scaler")):
        out = kit.model((kit.stats(x) if hasattr(kit, "stats") else x).to(dtype))
    loss = (out.float() - target).square().mean()
    if hasattr(kit, "ema"):
        with torch.no_grad():  # what is averaged has a part in the training, as a mean teacher's has
            mean = kit.ema(x.to(dtype)).float()
        loss = loss + 0.1 * (out.float() - mean).square().mean()
    if hasattr(kit, "shadow"):
        loss = loss + 1e-3 * sum((p - kit.shadow.weights[n]).square().sum() for n, p in kit.model.named_parameters())
    if hasattr(kit, "critic"):
        kit.critic_optimizer.zero_grad()
        (kit.critic(x) - kit.critic(out.detach())).mean().backward()
        kit.critic_optimizer.step()
        loss = loss - 0.1 * kit.critic(out).mean()
    return loss


def optimize(kit: SimpleNamespace, x: torch.Tensor, is_last: bool) -> torch.Tensor:
    if isinstance(kit.optimizer, torch.optim.LBFGS):

        def closure() -> torch.Tensor:
            kit.optimizer.zero_grad()
            again = loss_of(kit, x)
            again.backward()
            return again

        return kit.optimizer.step(closure)
    loss = loss_of(kit, x)
    scaler = getattr(kit, "scaler", None)
    (loss if scaler is None else scaler.scale(loss)).backward()
    if isinstance(kit.optimizer, Sam):
        kit.optimizer.first()
        kit.optimizer.zero_grad()
        loss_of(kit, x).backward()
    if not is_last:
        return loss
    if kit.masters:
        params = [p for p in kit.model.parameters() if p.requires_grad]
        for master, p in zip(kit.masters, params, strict=True):
            master.grad = p.grad.float()
        kit.optimizer.step()
        for master, p in zip(kit.masters, params, strict=True):
            p.data.copy_(master.data)
            p.grad = None
    elif scaler is None:
        kit.optimizer.step()
    else:
        scaler.step(kit.optimizer)
        scaler.update()
    kit.optimizer.zero_grad()
    return loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("state")
    parser.add_argument("--forget", default="")
    parser.add_argument("--steps", type=int, default=24)
    args = parser.parse_args()
    wrap, precision, optimizer, more = args.state.split("/")
    extras = set(more.split("+")) - {""}
    torch.set_num_threads(1)
    if SIZE > 1:
        dist.init_process_group("gloo")
    kit = build(wrap, precision, optimizer, extras)
    every = 2 if "accumulate" in extras else 1
    forget = set(args.forget.split("+")) - {""}
    state = everstep.State(**kept(kit, forget))
    trail, wait_after = Path(os.environ["TRAIL"], str(RANK)), int(os.environ.get("WAIT_AFTER", "1000000000"))
    for step in state.steps(args.steps):
        while step > wait_after and os.environ.get("EVERSTEP_GENERATION") == "0":
            time.sleep(0.01)  # for the kill that is to come
        x = torch.randn(8, 16)
        for name in ("torchgen", "numpygen", "pythongen"):
            generator = getattr(kit, name)
            if generator is not None:
                x = x + float(
                    torch.rand(1, generator=generator) if isinstance(generator, torch.Generator) else generator.random()
                )
        loss = optimize(kit, x, (step + 1) % every == 0)
        if hasattr(kit, "scheduler"):
            kit.scheduler.step(*([loss.item()] if "plateau" in extras else []))
        if hasattr(kit, "ema"):
            kit.ema.update_parameters(kit.model)
        if hasattr(kit, "shadow"):
            kit.shadow.update(kit.model)
        with trail.open("a") as file:
            file.write(f"{step} {loss.item().hex()} {os.getpid()}\n")
    if SIZE > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
