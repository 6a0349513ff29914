"""The training of bench/update.py: DDP on gloo with everstep.State. After each step it appends "tag step time" to
$UPDATE_TRAIL/rank-<rank>.log; `tag.py` beside it is what an update changes. Time is CLOCK_MONOTONIC.
"""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from tag import TAG
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import everstep

WIDTH, DEPTH, BATCH = 256, 4, 128


def main() -> None:
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = everstep.State(model=model, optimizer=optimizer)
    with (Path(os.environ["UPDATE_TRAIL"]) / f"rank-{rank}.log").open("a", buffering=1) as log:
        for step in state.steps(10_000_000):
            batch = torch.randn(BATCH, WIDTH)
            loss = (model(batch) - batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.write(f"{TAG} {step} {time.monotonic():.6f}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
