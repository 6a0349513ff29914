"""NCCL with one rank: its flight record, read back as the agent reads it, also while a graph is being captured."""

import json
import os
import threading
from typing import Any

os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "200")
os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", "200")

import torch
import torch.distributed as dist

from everstep.analyzer.reading.flight import normalise
from everstep.worker.link.record import flight_record
from gpu_running.part import Report, Request, run

_CALLS = 12


def main(request: Request, report: Report) -> None:
    torch.cuda.set_device(request.device)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=torch.device(request.device))
    tensor = torch.ones(1 << 20, device=request.device)
    for _ in range(_CALLS):
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    report.figure("one rank reduces", bool((tensor == 1).all()), goal="is true")
    report.attempt("the record", lambda: _read(report, "the record"))
    report.attempt("beside a capture", lambda: _beside_a_capture(request, report))
    dist.destroy_process_group()


def _read(report: Report, name: str) -> None:
    """On a thread of its own, as the watch thread does."""
    found: list[Any] = []

    def read() -> None:
        try:
            found.append(flight_record())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join(20)
    if not found:
        report.figure(f"{name} is read", None, goal="is true", note="not within 20 s")
        return
    (raw,) = found
    if isinstance(raw, Exception):
        raise raw
    record = normalise(json.loads(raw), 0)
    report.figure(f"{name}: collectives", len(record.entries), goal=f">= {_CALLS}", note=f"version {record.version}")
    num_done = sum(entry.completed for entry in record.entries)
    report.figure(f"{name}: completed", num_done, goal=f">= {_CALLS}")
    num_timed = sum(entry.started is not None for entry in record.entries)
    report.figure(f"{name}: with the device's own beginning", num_timed)
    report.figure(f"{name}: the group has its ranks", any(group.ranks for group in record.groups), goal="is true")


def _beside_a_capture(request: Request, report: Report) -> None:
    source = torch.ones(1 << 16, device=request.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = source * 3
        _read(report, "beside a capture")
    graph.replay()
    torch.cuda.synchronize()
    report.figure("the graph is whole", bool((held == 3).all()), goal="is true")


if __name__ == "__main__":
    run(main)
