"""The training of bench/agent_kills.py: DDP on gloo, AdamW; with `state` as its argument everstep.State keeps it.

After each step it appends "generation rank step time pid" to $EVERSTEP_BENCH_DIR/rank-<rank>.log, with the time of
CLOCK_MONOTONIC, which all processes of one machine share.
"""

import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, DEPTH, BATCH = 256, 4, 64


def main() -> None:
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    layers: list[nn.Module] = []
    for _ in range(DEPTH):
        layers += [nn.Linear(WIDTH, WIDTH), nn.GELU()]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps: Iterable[int] = range(1_000_000)
    if "state" in sys.argv:
        import everstep

        steps = everstep.State(model=model, optimizer=optimizer).steps(1_000_000)
    generation = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    with (Path(os.environ["EVERSTEP_BENCH_DIR"]) / f"rank-{rank}.log").open("a", buffering=1) as log:
        for step in steps:
            batch = torch.randn(BATCH, WIDTH)
            loss = (model(batch) - batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
            log.write(f"{generation} {rank} {step} {time.monotonic():.6f} {os.getpid()}\n")
            time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
