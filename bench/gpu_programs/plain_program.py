"""A training on a device as people write it: NCCL, no State, no seed, nothing of everstep.

    everstep run ... plain_program.py FOLDER STEPS KILL_AT

Appends one JSON line per step to FOLDER/steps.jsonl: when, which life, which step. In its first life the rank kills
itself after step KILL_AT.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def main() -> None:
    folder, steps, kill_at = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    stages = {"entered": time.monotonic()}
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    layers = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).cuda()
    stages["on the device"] = time.monotonic()
    dist.init_process_group("nccl")
    stages["process group"] = time.monotonic()
    model = nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    stages["DDP"] = time.monotonic()
    life = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    for step in range(steps):
        time.sleep(0.2)  # a kill at a random moment seldom comes in the first seconds
        optimizer.zero_grad()
        loss = model(torch.randn(256, 1024, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        line = {"at": time.monotonic(), "stages": stages, "life": life, "step": step, "loss": loss.item()}
        with (folder / "steps.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        if life == 0 and step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
