"""Two gloo ranks on one device; after some steps rank 1 stands still in one of the ways that only a device knows.

    everstep run --nproc-per-node 2 ... hang_program.py KIND DEVICE FOLDER

`kernel`: a kernel that does not end, and a thread that waits for the device. `event`: a stream waits for an event that
does not come. `nccl`: rank 0 is in a collective of NCCL that rank 1 never enters. `sleep`: rank 1 sleeps, anywhere.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import everstep

_STEPS, _HANG_AT = 4000, 40
_LONG = 1 << 60  # cycles: thousands of days


def main() -> None:
    kind, device, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if device != "cpu":
        torch.cuda.set_device(device)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.Linear(256, 256).to(device)
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    state = everstep.State(model=wrapped, optimizer=optimizer)
    batch = torch.randn(8, 256, device=device)
    generation = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    group = dist.new_group(backend="nccl") if kind == "nccl" and generation == 0 else None
    for step in state.steps(_STEPS):
        time.sleep(0.05)
        wrapped(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if generation > 0 and step > _HANG_AT + 10:
            break
        if generation == 0 and step == _HANG_AT:
            stand_still(kind, rank, device, folder, group)
    dist.barrier()


def stand_still(kind: str, rank: int, device: str, folder: Path, group: object) -> None:
    if rank == 1:
        (folder / "hung").write_text(str(time.time()))
    if kind == "nccl" and rank == 0:
        dist.all_reduce(torch.ones(8, device=device), group=group)
        torch.cuda.synchronize()
    if rank != 1:
        return
    if kind in ("sleep", "nccl"):
        time.sleep(3600)
    if kind == "kernel":
        torch.cuda._sleep(_LONG)
    if kind == "event":
        side, event = torch.cuda.Stream(), torch.cuda.Event()
        with torch.cuda.stream(side):
            torch.cuda._sleep(_LONG)
            event.record(side)
        torch.cuda.current_stream().wait_event(event)
        torch.ones(8, device=device).add_(1)
    torch.cuda.current_stream().synchronize()


if __name__ == "__main__":
    main()
