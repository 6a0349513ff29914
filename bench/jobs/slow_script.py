"""The training of bench/slow_ranks.py: two ranks, each pinned to a core, that compute, write a little and meet.

slow_script.py plain|state [WIDTH]
"""

import fcntl
import mmap
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist

FOLDER = Path(os.environ["EVERSTEP_BENCH_DIR"])
COMPUTE_S, REST_S, SLEEP_S = 0.04, 0.03, 0.06
WRITTEN_BYTES = 128 << 10


def steps() -> Iterable[int]:
    if sys.argv[1] == "plain":
        return range(1_000_000)
    import everstep

    return everstep.State(model=torch.nn.Linear(4, 4)).steps(1_000_000)


def compute() -> None:
    end = time.thread_time() + COMPUTE_S
    while time.thread_time() < end:
        pass


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % 2]})
    block = mmap.mmap(-1, WRITTEN_BYTES)  # aligned, as O_DIRECT wants it
    log = os.open(FOLDER / f"written-{rank}", os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
    lock = os.open(FOLDER / f"lock-{rank}", os.O_CREAT | os.O_WRONLY)
    (FOLDER / f"pid-{rank}").write_text(str(os.getpid()))
    width = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    parameters = torch.nn.Linear(width, width)
    optimizer = torch.optim.SGD(parameters.parameters(), lr=0.1)
    for step in steps():
        compute()
        if (FOLDER / f"sleep-{rank}").exists():
            time.sleep(SLEEP_S)
        os.pwrite(log, block, 0)
        fcntl.flock(lock, fcntl.LOCK_EX)
        fcntl.flock(lock, fcntl.LOCK_UN)
        parameters(torch.ones(2, width)).sum().backward()
        for parameter in parameters.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(REST_S)
        if rank == 0:
            print(f"step {step}", flush=True)


if __name__ == "__main__":
    main()
