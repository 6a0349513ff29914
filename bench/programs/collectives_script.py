"""Calls of collectives with a stopwatch around each, then one delay of a chosen rank before each of many small ones.
Knows nothing of Everstep. Each rank writes what its stopwatch said: `rank-N.json`."""

import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

place, repeats, num_delays, seed, linger_s = Path(sys.argv[1]), *map(int, sys.argv[2:5]), float(sys.argv[5])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
timed: list[tuple[str, int, float]] = []
delayed: list[tuple[int, int, float]] = []  # sequence number, whose turn it was, when this rank came


def stop(op: str, num_bytes: int, call: Callable[..., object], *args: object) -> None:
    begun = time.perf_counter()
    call(*args)
    timed.append((op, num_bytes, time.perf_counter() - begun))


group = dist.distributed_c10d._get_default_group()
for mebibytes in (1, 2, 4, 8):
    whole = torch.ones(mebibytes << 18)
    part = torch.ones(len(whole) // size)
    for _ in range(repeats):
        stop("all_reduce", 4 * len(whole), dist.all_reduce, whole)
        stop("broadcast", 4 * len(whole), dist.broadcast, whole, 0)
        stop("all_gather", 4 * len(part) * size, dist.all_gather_single, torch.empty(len(part) * size), part)
        stop(
            "all_to_all",
            4 * len(part) * size,
            dist.all_to_all_single,
            torch.empty(len(part) * size),
            whole[: len(part) * size],
        )
        time.sleep(0.01)

turns = random.Random(seed)
one = torch.ones(1)
for _ in range(num_delays):
    whose, delay_s = turns.randrange(size), turns.uniform(0.02, 0.06)
    dist.barrier()
    if whose == rank:
        time.sleep(delay_s)
    came = time.time()
    dist.all_reduce(one)
    delayed.append((group._get_sequence_number_for_group(), whose, came))

ends_at = time.time() + linger_s
while True:  # the agents look every ten seconds, and at ranks that communicate
    time.sleep(0.1)
    left = torch.tensor([ends_at - time.time()])
    dist.all_reduce(left, op=dist.ReduceOp.MIN)
    if left.item() < 0:
        break
(place / f"rank-{rank}.json").write_text(json.dumps({"timed": timed, "delayed": delayed}))
