"""The training of bench/replace.py: recovery_script's model, with everstep's State where EVERSTEP_BENCH_STATE is set.

After each step, and after whatever its loop does between two steps (State takes its snapshot), it appends one line
"restart-count rank step time pid" to $EVERSTEP_BENCH_DIR/rank-<rank>.log; the time is when the step was done. Without
the variable it does not import everstep, so that another launcher runs it in an environment of its own.
"""

import os
import time
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 256
DEPTH = 4
BATCH = 128
NUM_STEPS = 1_000_000


def main() -> None:
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    layers: list[nn.Module] = []
    for _ in range(DEPTH):
        layers += [nn.Linear(WIDTH, WIDTH), nn.GELU()]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    path = Path(os.environ["EVERSTEP_BENCH_DIR"]) / f"rank-{rank}.log"
    with path.open("a", buffering=1) as log:
        done = ""
        for step in _steps(model, optimizer):
            log.write(done)
            batch = torch.randn(BATCH, WIDTH)
            loss = (model(batch) - batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
            done = f"{restart} {rank} {step} {time.monotonic():.6f} {os.getpid()}\n"
    dist.destroy_process_group()


def _steps(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterable[int]:
    if not os.environ.get("EVERSTEP_BENCH_STATE"):
        return range(NUM_STEPS)
    import everstep

    return everstep.State(model=model, optimizer=optimizer).steps(NUM_STEPS)


if __name__ == "__main__":
    main()
