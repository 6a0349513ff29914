"""mp.spawn, as its users write it: the program starts its own processes and names the port.

everstep run train_spawn.py --nprocs 2                   # works; everstep sees one rank, which only waits
everstep run --nproc-per-node 2 train_spawn.py           # better: everstep starts the ranks, and sees each one
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def spawned(rank: int, world_size: int, steps: int) -> None:
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "29581"
    train(rank, world_size, steps)


def train(rank: int, world_size: int, steps: int) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        x = torch.randn(8, 8)
        loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    print(f"rank {rank} of {dist.get_world_size()}", flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nprocs", type=int, default=0, help="0: the ranks are there already")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    if args.nprocs:
        mp.spawn(spawned, args=(args.nprocs, args.steps), nprocs=args.nprocs)
    else:
        train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), args.steps)


if __name__ == "__main__":
    main()
