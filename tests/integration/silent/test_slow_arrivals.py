"""Compute per rank from real flight records of gloo, against what the script measured of itself.

Plain torch without a launcher: what is tested is what torch writes and how it is read, on three layouts.
"""

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from free_ports import free_port

from everstep.agent.watching import slow_rounds
from everstep.agent.watching.slow_rounds import _Totals
from everstep.analyzer.slowness.arrivals import measure

pytestmark = [pytest.mark.slow, pytest.mark.soak]

NUM_STEPS = 30
SCRIPT = """
import json, os, random, sys, time
import uncompiled, torch, torch.distributed as dist
kind, folder, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
dice = random.Random(rank)
did_s = []


def compute(seconds):
    begin = time.perf_counter()
    time.sleep(seconds * (1.3 if rank == 2 else 1.0) * dice.uniform(0.9, 1.1))
    did_s[-1] += time.perf_counter() - begin


class Compute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        compute(0.02)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        compute(0.02)
        return grad


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(128, 128) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = Compute.apply(layer(x))
        return x


if kind == "ddp":  # one bucket per layer, all of one size: three go on while gradients are reduced
    model = torch.nn.parallel.DistributedDataParallel(Model(), bucket_cap_mb=0.05)
if kind == "mesh":
    tp = [dist.new_group(ranks, group_desc="mesh_tp") for ranks in ([0, 1], [2, 3])][rank // 2]
    dp = [dist.new_group(ranks, group_desc="mesh_dp") for ranks in ([0, 2], [1, 3])][rank % 2]
for step in range(steps):
    did_s.append(0.0)
    if kind == "ddp":
        model(torch.ones(2, 128, requires_grad=True)).sum().backward()
    elif kind == "mesh":
        for _ in range(4):
            compute(0.04)
            dist.all_reduce(torch.ones(64), group=tp)
        dist.all_reduce(torch.ones(128), group=dp)
    else:
        for size in (16, 64):
            compute(0.08)
            dist.all_reduce(torch.ones(size))
with open(f"{folder}/{rank}.fr", "wb") as file:
    file.write(torch._C._distributed_c10d._dump_fr_trace_json(True, False))
with open(f"{folder}/{rank}.did", "w") as file:
    json.dump(did_s, file)
dist.barrier()
dist.destroy_process_group()
"""


def run(folder: Path, kind: str) -> None:
    """Four ranks, ended whatever happens."""
    port = free_port()
    ranks = []
    try:
        for rank in range(4):
            env = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": "4",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "TORCH_FR_BUFFER_SIZE": "2000",
                "OMP_NUM_THREADS": "1",
            }
            command = [sys.executable, "-c", SCRIPT, kind, str(folder), str(NUM_STEPS)]
            ranks.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE))
        for each in ranks:
            _, err = each.communicate(timeout=120)
            assert each.returncode == 0, err.decode()[-2000:]
    finally:
        for each in ranks:
            each.kill()
            each.communicate()


@pytest.mark.parametrize(("kind", "num_waits"), [("ddp", 1), ("explicit", 2), ("mesh", 5)])
def test_compute_is_what_the_script_did(tmp_path: Path, kind: str, num_waits: int):
    run(tmp_path, kind)
    totals = {"data_s": None, "gc_s": None, "work": None, "delay_s": None}
    rounds = []
    for rank in range(4):
        entries = slow_rounds.entries_of({}, (tmp_path / f"{rank}.fr").read_bytes())
        begin, end = _Totals(at=0.0, step=0, **totals), _Totals(at=1.0, step=NUM_STEPS, **totals)
        rounds.append(slow_rounds._round(types.SimpleNamespace(rank=rank), entries, end, begin, 512, {}))
    measured = measure(rounds)
    assert measured.num_waits == num_waits
    computes = {timing.rank: timing.compute_s for timing in measured.timings}
    for rank, compute_s in computes.items():
        did = sorted(json.loads((tmp_path / f"{rank}.did").read_text())[2:])
        did_s = did[len(did) // 2]
        # What is not in the script's own account: the communication, and torch's own work between the pieces.
        assert 0.97 * did_s <= compute_s <= 1.12 * did_s, (kind, rank, compute_s, did_s)
    others = sorted(computes[rank] for rank in (0, 1, 3))
    assert 1.2 <= computes[2] / others[1] <= 1.4
    waits = {timing.rank: timing.wait_s for timing in measured.timings}
    assert waits[2] < 0.02 < min(waits[rank] for rank in (0, 1, 3))
