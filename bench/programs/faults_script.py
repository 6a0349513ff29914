"""The training that bench/faults.py hurts: steps of about 100 ms on gloo, in one of two layouts.

    everstep run --nproc-per-node 4 faults_script.py dp     DDP over all ranks
    everstep run --nproc-per-node 4 faults_script.py 2x2    tensor parallel (0,1) (2,3), data parallel (0,2) (1,3)

Uses `State`, tells its loss where everstep takes one, and has a data loader with one process per rank. Most of a step
is waiting, so that eight processes fit on two cores. Must not know that it is being hurt.
"""

import os
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

import everstep

WIDTH = 64
SLEEP_S = 0.08


class Batches(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.randn(16, WIDTH)


class DataParallel:
    """DDP does everything."""

    def __init__(self) -> None:
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
        self.ddp = DistributedDataParallel(self.model)

    def step(self, batch: torch.Tensor, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        loss: torch.Tensor = (self.ddp(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        time.sleep(SLEEP_S)
        optimizer.step()
        return loss.detach()


class Mesh:
    """By hand: activations are summed over tp within the step, gradients over dp at its end, the loss over all."""

    def __init__(self) -> None:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        self.tp, self.dp = mesh.get_group("tp"), mesh.get_group("dp")
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))

    def step(self, batch: torch.Tensor, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        dist.broadcast(batch, dist.get_rank() // 2 * 2, group=self.tp)
        out = self.model(batch)
        whole = out.detach().clone()
        dist.all_reduce(whole, group=self.tp)
        loss: torch.Tensor = (out + (whole / 2 - out).detach() - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        time.sleep(SLEEP_S)
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad, group=self.dp)
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)  # over all ranks, for the log
        return mean / dist.get_world_size()


def main() -> None:
    dist.init_process_group("gloo")
    is_mesh = sys.argv[1] == "2x2"
    torch.manual_seed(dist.get_rank() % 2 if is_mesh else 0)  # tensor-parallel ranks hold other parameters
    torch.set_num_threads(1)
    layout = Mesh() if is_mesh else DataParallel()
    optimizer = torch.optim.AdamW(layout.model.parameters(), lr=1e-4)
    batches = iter(DataLoader(Batches(), batch_size=None, num_workers=1, prefetch_factor=2))
    state = everstep.State(model=layout.model, optimizer=optimizer)
    tell: Any = getattr(everstep, "step", None)
    fd = os.open(os.environ["EVERSTEP_BENCH_STEPS"], os.O_RDWR | os.O_CREAT) if dist.get_rank() == 0 else -1
    for step in state.steps(1_000_000_000):
        loss = layout.step(next(batches), optimizer)
        if tell is not None:
            tell(loss=loss)
        if fd >= 0:
            os.pwrite(fd, struct.pack("<q", step), 0)
            print("step", step, float(loss), flush=True)


if __name__ == "__main__":
    main()
