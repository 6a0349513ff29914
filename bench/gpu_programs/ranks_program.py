"""DDP over gloo or NCCL with all ranks on one device; rank 1 kills itself once.

everstep run --nproc-per-node 2 ... ranks_program.py DEVICE NUM_STEPS KILL_AT FOLDER BACKEND PAUSE_S

NCCL refuses two ranks of one host on one device: with it each rank says that it is a host of its own.
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import everstep


def main() -> None:
    device, num_steps, kill_at, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    generation = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    stages = {"in the program again": time.monotonic()}
    if sys.argv[5] == "nccl":
        os.environ["NCCL_HOSTID"] = f"host-{os.environ['RANK']}"
        torch.cuda.set_device(device)
    dist.init_process_group(sys.argv[5])
    stages["process group"] = time.monotonic()
    rank = dist.get_rank()
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)).to(device)
    wrapped = nn.parallel.DistributedDataParallel(model)
    stages["model, DDP"] = time.monotonic()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    stages["optimizer"] = time.monotonic()
    state = everstep.State(model=wrapped, optimizer=optimizer)
    stages["State"] = time.monotonic()
    torch.manual_seed(100 + rank)
    for step in state.steps(num_steps):
        if generation == 0 and rank == 1 and step == kill_at:
            (folder / "killed").write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(float(sys.argv[6]))
        batch = torch.randn(32, 512, device=device)
        (wrapped(batch) - batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        stages.setdefault("first step", time.monotonic())
    digest = hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())).hexdigest()
    result = {
        "digest": digest,
        "resumed": state.resumed,
        "generation": generation,
        "step": state.step,
        "stages": stages,
    }
    (folder / f"rank-{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
