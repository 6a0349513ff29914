"""The training that every launcher in bench/recovery.py runs, unchanged: plain torch, DDP on gloo, AdamW.

Answers nothing itself: after each step it appends one line "restart-count rank step time pid" to
$EVERSTEP_BENCH_DIR/rank-<rank>.log, and the driver reads those. Time is CLOCK_MONOTONIC, which all
processes of one machine share. Must not import everstep: nobody gets help that the others do not get.
"""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# One step of four ranks on two cores takes 50 to 100 ms with these: mostly arithmetic, 2.4 MB of gradients.
WIDTH = 384
DEPTH = 4
BATCH = 512


def main() -> None:
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    layers: list[nn.Module] = []
    for _ in range(DEPTH):
        layers += [nn.Linear(WIDTH, WIDTH), nn.GELU()]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    path = Path(os.environ["EVERSTEP_BENCH_DIR"]) / f"rank-{rank}.log"
    with path.open("a", buffering=1) as log:
        for step in range(int(os.environ.get("EVERSTEP_BENCH_STEPS", "1000000"))):
            batch = torch.randn(BATCH, WIDTH, generator=generator)
            loss = (model(batch) - batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
            log.write(f"{restart} {rank} {step} {time.monotonic():.6f} {os.getpid()}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
