"""The training of bench/many_kills.py: a small model under DDP with State, every loss logged to the last bit.

It trains until the step that stands in the file STOP, which the driver writes; `argv`: losses, final, stop.
"""

import hashlib
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import everstep

WIDTH = 64
LOOK_EVERY = 20  # steps between two looks at the file, the same ones on every rank


def main() -> None:
    losses, final, stop = map(Path, sys.argv[1:4])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1), nn.Linear(WIDTH, 1)))
    torch.manual_seed(1 + rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = everstep.State(model=model, optimizer=optimizer)
    log = os.open(losses, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if rank == 0 else -1
    last = None
    for step in state.steps(1 << 40):
        if last is None or step % LOOK_EVERY == 0:  # what rank 0 sees counts
            seen = torch.tensor([int(stop.read_text()) if rank == 0 and stop.exists() else 1 << 40])
            dist.broadcast(seen, 0)
            last = int(seen)
        if step > last:  # also right after a restart from the last step
            break
        loss = model(torch.randn(8, WIDTH)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if log >= 0:
            os.write(log, f"{step} {loss.item().hex()}\n".encode())
    if rank == 0:
        parameters = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
        final.write_text(hashlib.sha256(parameters).hexdigest())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
