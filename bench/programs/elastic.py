"""What `bench/elastic.py` runs: trains on an epoch's samples, and writes all that a comparison needs.

elastic.py FOLDER KIND NUM_STEPS [START]    KIND: ddp, fsdp2; START: go on from this step with the state in FOLDER
"""

import hashlib
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import everstep
from everstep.integrations.data import ResumableLoader

SAMPLES, BATCH = 100_000, 4


def build(kind: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 63), torch.nn.Tanh(), torch.nn.Linear(63, 1))
    if kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    else:
        model = torch.nn.parallel.DistributedDataParallel(model)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Parameters, then the optimizer's state of each in the order of its names."""
    states = [optimizer.state[p] for p in model.parameters() if p in optimizer.state]
    return [*model.parameters(), *(state[name] for state in states for name in sorted(state))]


def digest(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
    told = hashlib.sha256()
    for tensor in tensors(model, optimizer):
        told.update(full(tensor.detach()).contiguous().numpy().tobytes())
    return told.hexdigest()[:16]


def local(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def dump(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, data: ResumableLoader) -> None:
    torch.save({"tensors": [local(t) for t in tensors(model, optimizer)], "data": data.state_dict()}, path)


def take_up(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, data: ResumableLoader) -> None:
    """What a run that starts at this size finds; no part of everstep's restoring is in it."""
    saved = torch.load(path, weights_only=False)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    if len(saved["tensors"]) > len(list(model.parameters())):
        optimizer.step()  # so that there is a state to fill
    optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        for mine, theirs in zip(tensors(model, optimizer), saved["tensors"], strict=True):
            local(mine).copy_(theirs)
    data.load_state_dict(saved["data"])


def main() -> None:
    folder, kind, num_steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    start = int(sys.argv[4]) if len(sys.argv) > 4 else None
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model, optimizer = build(kind)
    samples = TensorDataset(torch.arange(SAMPLES))
    data = ResumableLoader(DataLoader(samples, batch_size=BATCH, sampler=DistributedSampler(samples, size, rank)))
    state = everstep.State(model=model, optimizer=optimizer, data=data)
    if start is not None:
        take_up(folder / f"state-{start}-{rank}", model, optimizer, data)
    first = state.step + 1 if start is None else start
    if start is None:
        dump(folder / f"state-{first}-{rank}", model, optimizer, data)
    name = f"steps-{rank}" if start is None else f"again-{start}-{rank}"
    before = digest(model, optimizer)
    with (folder / name).open("a") as out:
        steps = state.steps(num_steps) if start is None else iter(range(start, num_steps))
        for step, (seen,) in zip(steps, data.forever(), strict=False):
            drawn = torch.stack([torch.randn(16, generator=torch.Generator().manual_seed(int(s))) for s in seen])
            loss = ((model(drawn) - drawn.sum(1, keepdim=True)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            after = digest(model, optimizer)
            numbers = ",".join(str(int(s)) for s in seen)
            print(step, size, time.time(), before, after, loss.item().hex(), numbers, file=out, flush=True)
            before = after
            if start is None:
                time.sleep(0.1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
