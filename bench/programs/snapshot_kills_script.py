"""The training that bench/snapshot_kills.py kills: a state that takes a while to copy, all of which steps depend on.

    everstep run ... snapshot_kills_script.py --steps N --loss-log FILE --final FILE [--state-mb 64] [--mesh 2,2,2]

Every rank holds shards of its own (by its place in the mesh; data parallel replicas hold the same), changed in every
step by numbers that all groups have summed up. So a rank that resumed from any other step would change every loss that
follows. Answers nothing itself: losses and a digest of all ranks' parameters are written to the files.
"""

import argparse
import hashlib
import math
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import everstep

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from train_gpt import LossLog

DIMENSIONS = ("pp", "dp", "tp")
WIDTH = 256
BATCH = 256


class Shard(nn.Module):
    """A layer that is computed with, and a large parameter whose gradient is cheap."""

    def __init__(self, state_mb: float) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.bulk = nn.Parameter(torch.randn(int(state_mb * 1e6 / 8)))  # with its momentum

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x)) * (1 + 1e-3 * self.bulk[:WIDTH])


class Position:
    """Which batch comes next."""

    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, int]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.value = state["value"]


class Training:
    """One rank."""

    def __init__(self, shape: tuple[int, ...], state_mb: float) -> None:
        self.mesh = init_device_mesh("cpu", shape, mesh_dim_names=DIMENSIONS)
        self.place = dict(zip(DIMENSIONS, self.mesh.get_coordinate() or (), strict=True))
        torch.manual_seed(1000 + 10 * self.place["pp"] + self.place["tp"])
        self.model = Shard(state_mb)
        torch.manual_seed(5000 + dist.get_rank())  # noise is every rank's own
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.position = Position()

    def step(self) -> float:
        """Its loss, the same on all ranks."""
        dice = torch.Generator().manual_seed(7919 * self.position.value + self.place["dp"])
        self.position.value += 1
        x = torch.randn(BATCH, WIDTH, generator=dice)
        y = self._summed("pp", self._summed("tp", self.model(x)))
        loss = (y - x).square().mean() + 1e-4 * torch.rand(())
        pull = loss.detach().clone()
        dist.all_reduce(pull)
        (loss + 1e-3 * (pull / dist.get_world_size()) * self.model.bulk.square().mean()).backward()
        layer = list(self.model.layer.parameters())
        for parameter in layer:
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad, group=self.mesh.get_group("dp"))
        # The bulk's own gradient would be 32 MB for gloo in every step: its beginning stands for it.
        assert self.model.bulk.grad is not None
        dist.all_reduce(self.model.bulk.grad[:WIDTH], group=self.mesh.get_group("dp"))
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(pull)

    def _summed(self, dimension: str, value: torch.Tensor) -> torch.Tensor:
        """The group's sum, with the gradient of the own part."""
        total = value.detach().clone()
        dist.all_reduce(total, group=self.mesh.get_group(dimension))
        return value + (total - value.detach())


def main() -> None:
    args = _arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    shape = tuple(int(size) for size in args.mesh.split(",")) if args.mesh else (1, dist.get_world_size(), 1)
    if math.prod(shape) != dist.get_world_size():
        raise SystemExit(f"mesh {shape} has not {dist.get_world_size()} ranks")
    training = Training(shape, args.state_mb)
    state = everstep.State(model=training.model, optimizer=training.optimizer, position=training.position)
    log = LossLog(args.loss_log, state.step + 1) if dist.get_rank() == 0 else None
    for step in state.steps(args.steps):
        time.sleep(args.pause)  # as a host does that waits for its device
        loss = training.step()
        if log is not None:
            log.write(step, loss)
    digests: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(digests, _digest(training.model))
    if dist.get_rank() == 0:
        Path(args.final).write_text("\n".join(map(str, digests)) + "\n")
    dist.destroy_process_group()


def _digest(model: nn.Module) -> str:
    sums = hashlib.sha256()
    for parameter in model.parameters():
        sums.update(parameter.detach().numpy().tobytes())
    return sums.hexdigest()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--loss-log", required=True)
    parser.add_argument("--final", required=True)
    parser.add_argument("--state-mb", type=float, default=64.0)
    parser.add_argument("--mesh", default="")
    parser.add_argument("--pause", type=float, default=0.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
