"""Groups of processes that a program makes below its rank: they meet as under plain `python`."""

import socket

import pytest
from real_run import Launcher

NESTED = """
import os, sys, socket
import uncompiled, torch, torch.distributed as dist, torch.multiprocessing as mp

def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]

def train(rank, size, port):
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    total = torch.ones(1) * (rank + 1)
    dist.all_reduce(total)
    os.write(1, f"sum {int(total)}\\n".encode())
    dist.destroy_process_group()

def inner():
    train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["MASTER_PORT"])

if __name__ == "__main__":
    how = sys.argv[1]
    if how == "itself":
        train(int(os.environ["RANK"]), 2, sys.argv[2])
    elif how == "elastic":
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch
        config = LaunchConfig(1, 1, 2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id="inner")
        elastic_launch(config, inner)()
    else:
        mp.start_processes(train, args=(2, port()), nprocs=2, start_method=how)
"""


@pytest.mark.parametrize(
    "how", ["spawn", *(pytest.param(how, marks=pytest.mark.soak) for how in ("fork", "forkserver", "elastic"))]
)
def test_processes_below_a_rank_meet_at_the_port_that_they_chose(launcher: Launcher, how):
    run = launcher.start(launcher.script(NESTED), how)
    assert run.wait() == 0, run.story()
    assert run.out().splitlines() == ["sum 3"] * 2


@pytest.mark.soak
def test_ranks_meet_at_a_port_that_the_program_chose(launcher: Launcher):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        free_port = free.getsockname()[1]
    run = launcher.start("--nproc-per-node", 2, launcher.script(NESTED), "itself", free_port)
    assert run.wait() == 0, run.story()
    assert run.out().splitlines() == ["sum 3"] * 2
