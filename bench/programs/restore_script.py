"""One rank of the training that bench/restore.py restarts: State, then a plain copy of the same bytes, in turns.

    everstep run ... restore_script.py STATE_MB NUM_KILLS FOLDER

Appends to FOLDER/rank-<r>.jsonl, once per generation: how long `everstep.State(...)` took, and how long it takes to
copy the same bytes into memory that is warm, and into memory that the process has never touched. Rank 0 then kills
itself, `NUM_KILLS` times in all.
"""

import json
import math
import os
import signal
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import everstep

_NUM_LAYERS = 40
_NUM_COPIES = 5
_NUM_STEPS = 14
_STEP_S = 0.1


def main() -> None:
    state_mb, num_kills, folder = float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    generation = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    width = math.isqrt(int(state_mb * 1e6 / 12 / _NUM_LAYERS))
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(_NUM_LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    dist.barrier()
    began = time.perf_counter()
    state = everstep.State(model=model, optimizer=optimizer)
    restore_s = time.perf_counter() - began
    dist.barrier()
    if state.resumed:
        copy_s, fresh_s = _plain_copies(_tensors(model, optimizer))
        record = {"generation": generation, "step": state.step, "restore_s": restore_s}
        with (folder / f"rank-{rank}.jsonl").open("a") as stream:
            stream.write(json.dumps({**record, "copy_s": copy_s, "fresh_s": fresh_s}) + "\n")
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    first = state.step + 1
    for step in state.steps(10_000):
        time.sleep(_STEP_S)
        optimizer.step()
        dist.all_reduce(torch.zeros(1))
        if step >= first + _NUM_STEPS:
            break
    dist.barrier()
    if generation < num_kills:
        if rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


def _tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    moments = [value for slot in optimizer.state.values() for value in slot.values()]
    return [*model.parameters(), *(value for value in moments if isinstance(value, torch.Tensor))]


@torch.no_grad()
def _plain_copies(tensors: list[torch.Tensor]) -> tuple[float, float]:
    """Seconds into warm memory (median), and into fresh memory. All ranks at the same time, as they restore."""
    dist.barrier()
    began = time.perf_counter()
    copies = [torch.empty_like(tensor).copy_(tensor) for tensor in tensors]
    fresh_s = time.perf_counter() - began
    took = []
    for _ in range(_NUM_COPIES):
        dist.barrier()
        began = time.perf_counter()
        for tensor, copy in zip(tensors, copies, strict=True):
            tensor.copy_(copy)
        took.append(time.perf_counter() - began)
    return statistics.median(took), fresh_s


if __name__ == "__main__":
    main()
