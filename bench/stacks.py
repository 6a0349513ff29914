"""How long one sweep of stacks takes: all ranks of a node once, real processes with torch loaded, in the agent's way.

    python bench/stacks.py [--ranks 8] [--rounds 5] [--at-once 1 2 4 8] [--way py-spy sampler] [--json]

Each process imports torch, holds a stack of some depth and works a little, as a training rank does. `py-spy` is what
the agent runs; `sampler` is the ranks' own. Prints the wall time of a sweep and the processor time that it cost.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everstep.agent.processes.reaping import Reaper
from everstep.agent.ranks.watch_link import WatchLink
from everstep.agent.ranks.workers import Paths, Worker
from everstep.agent.watching import stacks
from everstep.agent.watching.stacks import Stacks
from everstep.probes.oom import KernelLog

RANK = """
import socket, sys, time
import torch
from everstep.worker.link import watch
class Board:
    def set_communication(self, seq, at): pass
    def forget_communication(self): pass
watch.start(Board(), socket.socket(fileno=int(sys.argv[1])))
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
def step(depth):
    if depth:
        return step(depth - 1)
    model(torch.ones(4, 64)).sum().backward()
    time.sleep(0.05)
print("ready", flush=True)
while True:
    step(20)
"""


def start(number: int, scratch: Path) -> tuple[Worker, "subprocess.Popen[bytes]", socket.socket]:
    near, far = socket.socketpair()
    command = [sys.executable, "-c", RANK, str(far.fileno())]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[far.fileno()], env=env)
    far.close()
    paths = Paths(stdout=scratch / "out", stderr=scratch / "err", error_file=scratch / "error")
    return Worker(rank=number, local_rank=number, pid=process.pid, paths=paths, log=KernelLog()), process, near


async def sweep(workers: Sequence[Worker], at_once: int, way: str) -> dict[str, Any]:
    reaper = Reaper()
    reaper.start()
    stacks.MAX_AT_ONCE = at_once
    made = Stacks(reaper)
    before, began = _children_s(), time.perf_counter()
    if way == "sampler":
        found = await asyncio.gather(*(worker.watch.sample(5.0) for worker in workers if worker.watch is not None))
    else:
        found = await asyncio.gather(*(made.take(worker.pid, 10.0) for worker in workers))
    took_s = time.perf_counter() - began
    failed = [why for threads, why in found if not threads]
    return {"took_s": took_s, "cpu_s": _children_s() - before, "failed": failed}


def _children_s() -> float:
    times = os.times()
    return times.children_user + times.children_system + times.user + times.system


async def measure(given: argparse.Namespace) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as scratch:
        started = [start(number, Path(scratch)) for number in range(given.ranks)]
        try:
            for worker, process, link in started:
                assert process.stdout is not None
                await asyncio.to_thread(process.stdout.readline)
                worker.watch = WatchLink(link)
            return await _rounds([worker for worker, _, _ in started], given)
        finally:
            for worker, process, _ in started:
                process.kill()
                process.wait()
                if worker.watch is not None:
                    worker.watch.close()


async def _rounds(workers: list[Worker], given: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for way in given.way:
        for at_once in given.at_once if way == "py-spy" else (len(workers),):
            sweeps = [await sweep(workers, at_once, way) for _ in range(given.rounds)]
            times = sorted(one["took_s"] for one in sweeps)
            rows.append(
                {
                    "way": way,
                    "ranks": len(workers),
                    "at_once": at_once,
                    "median_s": round(times[len(times) // 2], 3),
                    "worst_s": round(times[-1], 3),
                    "cpu_s": round(sum(one["cpu_s"] for one in sweeps) / len(sweeps), 3),
                    "failed": [why for one in sweeps for why in one["failed"]],
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--way", nargs="+", choices=("py-spy", "sampler"), default=["py-spy", "sampler"])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = asyncio.run(measure(given))
    if given.json:
        print(json.dumps(rows))
        return
    print(f"{'way':>8}  ranks  at once    median     worst  processor  failed")
    for row in rows:
        times = f"{row['median_s']:>6.3f} s  {row['worst_s']:>6.3f} s  {row['cpu_s']:>7.3f} s"
        print(f"{row['way']:>8}  {row['ranks']:>5}  {row['at_once']:>7}  {times}  {len(row['failed'])}")


if __name__ == "__main__":
    main()
