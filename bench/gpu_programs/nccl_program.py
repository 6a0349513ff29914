"""NCCL with all ranks on one device. Knows nothing of Everstep.

    everstep run --nproc-per-node N ... nccl_program.py KIND FOLDER REPEATS DELAYS SEED LINGER_S

NCCL refuses two ranks of one host on one device, so each says that it is a host of its own (NCCL_HOSTID); they reach
each other by sockets on the loopback interface. The kernels of the ranks take turns on the device.

`timed`: calls with two stopwatches around each (the host's and the device's), then one delay of a chosen rank before
each of many small collectives; each rank writes FOLDER/rank-N.json. `missing`: after REPEATS steps rank 2 sleeps
instead of the next one. `order`: it calls one operation more. Both write when to FOLDER/hung, in the first life only.
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

_GUILTY = 2
_LIMIT_S = 200.0


def main() -> None:
    kind, folder = sys.argv[1], Path(sys.argv[2])
    repeats, num_delays, seed, linger_s = int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]), float(sys.argv[6])
    os.environ["NCCL_HOSTID"] = f"host-{os.environ['RANK']}"
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
    if kind == "timed":
        timed = _time(repeats)
        delayed = _delay(num_delays, random.Random(seed))
        _linger(linger_s)
        (folder / f"rank-{dist.get_rank()}.json").write_text(json.dumps({"timed": timed, "delayed": delayed}))
    else:
        _stand_still(kind, folder, repeats)
    dist.destroy_process_group()


def _time(repeats: int) -> list[tuple[str, int, float, float]]:
    """Operation, bytes, seconds by the host, seconds by the device."""
    size = dist.get_world_size()
    timed = []

    def stop(op: str, num_bytes: int, call: Callable[..., object], *args: object) -> None:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        begin.record()
        call(*args)
        end.record()
        torch.cuda.synchronize()
        timed.append((op, num_bytes, time.perf_counter() - begun, begin.elapsed_time(end) / 1e3))

    warm = torch.ones(1 << 17, device="cuda")
    for _ in range(2):  # the first call of each kind connects
        dist.all_reduce(warm)
        dist.broadcast(warm, 0)
        dist.all_gather_into_tensor(torch.empty(size << 17, device="cuda"), warm)
    for mebibytes in (1, 4, 16):
        whole = torch.ones(mebibytes << 18, device="cuda")
        part = torch.ones(len(whole) // size, device="cuda")
        gathered = torch.empty(len(part) * size, device="cuda")
        for _ in range(repeats):
            stop("all_reduce", 4 * len(whole), dist.all_reduce, whole)
            stop("broadcast", 4 * len(whole), dist.broadcast, whole, 0)
            stop("all_gather", 4 * len(gathered), dist.all_gather_into_tensor, gathered, part)
            time.sleep(0.01)
    return timed


def _delay(num_delays: int, turns: random.Random) -> list[tuple[int, int, float]]:
    """Sequence number, whose turn it was, when this rank came."""
    group = dist.distributed_c10d._get_default_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    one = torch.ones(1, device="cuda")
    delayed = []
    for _ in range(num_delays):
        whose, delay_s = turns.randrange(size), turns.uniform(0.05, 0.12)
        dist.barrier()
        torch.cuda.synchronize()
        if whose == rank:
            time.sleep(delay_s)
        came = time.time()
        dist.all_reduce(one)
        torch.cuda.synchronize()
        delayed.append((group._get_sequence_number_for_group(), whose, came))
    return delayed


def _linger(linger_s: float) -> None:
    """The agents look every few seconds, and at ranks that communicate."""
    ends_at = time.time() + linger_s
    left = torch.tensor([linger_s], device="cuda")
    while left.item() > 0:
        time.sleep(0.1)
        left.fill_(ends_at - time.time())
        dist.all_reduce(left, op=dist.ReduceOp.MIN)


def _stand_still(kind: str, folder: Path, repeats: int) -> None:
    """In a training as people write it: DistributedDataParallel, an optimizer."""
    first_life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(16, 512, device="cuda")
    for step in range(2 * repeats):
        time.sleep(0.05)
        if first_life and step == repeats and dist.get_rank() == _GUILTY:
            (folder / "hung").write_text(str(time.time()))
            if kind == "missing":
                time.sleep(_LIMIT_S)
            dist.broadcast(batch, src=0)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
