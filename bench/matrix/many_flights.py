"""A folder of flight records of a large job: a thousand files as NCCL leaves them, and which rank stopped.

The newest steps are played as in `flights`; what is older completed everywhere and fills each rank's ring.
"""

import random
import zlib
from pathlib import Path
from typing import Any

from matrix.flights import BEGAN_S, OP_S, Job, Shape
from matrix.torch_pickle import TorchPickler

MICRO = 6
PLAYED_STEPS = 2
SITES = ("allreduce_params", "reduce_scatter_grads", "all_gather_params", "send_forward", "recv_backward", "sync_loss")


def write_folder(folder: Path, shape: Shape, num_entries: int, num_frames: int, seed: int = 0) -> int:
    """Files `nccl_trace_rank_N`, one per rank. Returns the guilty rank."""
    draw = random.Random(seed)
    job = Job(draw, shape, timed=True, only_active=False)
    guilty = draw.randrange(shape.size)
    per_step = min(len(job.program(rank, MICRO)) for rank in range(shape.size))
    steps = num_entries // per_step + 1
    at = BEGAN_S
    for _ in range(steps):
        job.queue_step(MICRO, at, {})
        at += 1.0
    old = {rank: len(ops) for rank, ops in job.ops.items()}
    for ops in job.ops.values():
        for each in ops:
            each.started, each.ended = each.created + OP_S, each.created + 2 * OP_S
    halted = {guilty: old[guilty] + per_step + draw.randrange(per_step)}
    for _ in range(PLAYED_STEPS):
        job.queue_step(MICRO, at, halted)
        at += 1.0
    job.run(at + 600.0, old)
    sites = [_frames(site, num_frames) for site in SITES]
    shared = frozenset(id(each) for frames in sites for each in (frames, *frames))
    for rank in range(shape.size):
        record = job.dump(rank)
        record["entries"] = [_with_frames(entry, sites) for entry in record["entries"][-num_entries:]]
        (folder / f"nccl_trace_rank_{rank}").write_bytes(TorchPickler(shared).dumps(record))
    return guilty


def _with_frames(entry: dict[str, Any], sites: list[list[dict[str, Any]]]) -> dict[str, Any]:
    site = sites[zlib.crc32(entry["profiling_name"].encode()) % len(sites)]
    thread = {"thread_name": "pt_main_thread", "thread_id": "140571708406656"}
    return {"frames": site} | entry | thread


def _frames(site: str, count: int) -> list[dict[str, Any]]:
    """Innermost first: torch, a framework that is installed, the user's program."""
    packages = "/opt/venv/lib/python3.11/site-packages"
    torch_frames = [("all_reduce", f"{packages}/torch/distributed/distributed_c10d.py", 3245),
                    ("wrapper", f"{packages}/torch/distributed/c10d_logger.py", 83)]  # fmt: skip
    middle = [(f"{site}_{i}", f"{packages}/megatron/core/part_{i}.py", 100 + i) for i in range(count - 5)]
    user = [(site, "/home/u/job/pretrain_gpt.py", 212), ("main", "/home/u/job/pretrain_gpt.py", 300),
            ("<module>", "/home/u/job/pretrain_gpt.py", 311)]  # fmt: skip
    return [{"name": name, "filename": file, "line": line} for name, file, line in (*torch_frames, *middle, *user)]
