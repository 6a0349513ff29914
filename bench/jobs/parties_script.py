"""The training of bench/parties.py: plain or with State, noise in its log, and the faults that the bench asks for.

    parties_script.py plain|state

`$EVERSTEP_BENCH_DIR/fault.json` names the next one: number, kind, rank, step and seed. Each happens once.
"""

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))  # started by its path: the rooms beside its own
from jobs import certain_kinds
from matrix import parties_more  # noqa: F401 - adds its faults
from matrix.parties_faults import FROM_CERTAIN, OWN

WIDTH = 32
NOISE = (
    'sysctl: setting key "net.core.somaxconn", ignoring: Read-only file system',
    "UserWarning: CUDA initialization: no driver; falling back to cpu",
    "torch.cuda.OutOfMemoryError: CUDA out of memory, caught: halving the micro batch",
    "request to tracker failed: Connection refused, retrying (attempt 1/5)",
    "fabricmanager: nothing to do on this system",
    "[W socket.cpp:755] [c10d] The client socket has failed to connect to [node-a]:29500 (errno: 111)",
    "FutureWarning: torch.load with weights_only=False",
    "nvme0: temperature 41 C, 0 media errors",
)


class Job:
    def __init__(self) -> None:
        self.mode, self.begun, self.done, self.seed = sys.argv[1], time.time(), 0, 0
        self.folder = Path(os.environ["EVERSTEP_BENCH_DIR"])
        self.server = self.service = os.environ.get("EVERSTEP_BENCH_SERVER", "")
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 4)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.pinned = os.environ.get("EVERSTEP_BENCH_PIN")

    def steps(self):  # noqa: ANN201 - an iterator of step numbers
        if self.mode == "plain":
            return range(1_000_000)
        import everstep

        return everstep.State(model=self.model, optimizer=self.optimizer).steps(1_000_000)

    def due(self, step: int) -> dict[str, Any] | None:
        """The fault of this step. The bench asks for steps that are some way off, so that all ranks hear of it."""
        try:
            fault: dict[str, Any] = json.loads((self.folder / "fault.json").read_text())
        except (OSError, ValueError):
            return None
        is_new = not (self.folder / f"hurt-{fault['number']}").exists()
        return fault if fault["step"] == step and is_new else None

    def hurts(self, fault: dict[str, Any]) -> None:
        self.seed, self.step = fault["seed"], fault["step"]
        (self.folder / f"hurt-{fault['number']}").write_text(str(time.time()))

    def train(self, step: int, fault: dict[str, Any] | None) -> None:
        if self.pinned:
            end = time.thread_time() + 0.03
            while time.thread_time() < end:
                pass
        loss = self.model(torch.randn(8, WIDTH)).square().mean()
        loss.backward()
        if fault is not None and (fault["kind"], fault["rank"]) == ("left-out", self.rank):
            self.hurts(fault)
            self.optimizer.zero_grad()
            return
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.done += 1
        time.sleep(0.04)
        if self.rank == 0:
            partial = self.folder / "step.new"
            partial.write_text(f"{self.begun} {self.done} {step}")
            partial.rename(self.folder / "step")
            print(f"step {step} loss {loss.item():.4f}", flush=True)

    def suffer(self, fault: dict[str, Any]) -> None:
        kind = fault["kind"]
        if self.rank == fault["rank"]:
            self.hurts(fault)
            {**certain_kinds.CERTAIN, **OWN}[kind](self)
        elif kind in certain_kinds.OTHERS:
            certain_kinds.OTHERS[kind](self)


def main() -> None:
    rng = random.Random()
    for line in rng.sample(NOISE, rng.randrange(4)):
        print(line, file=sys.stderr, flush=True)
    job = Job()
    if job.pinned:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[job.rank % 2]})
    for step in job.steps():
        fault = job.due(step)  # asked by all before anybody does anything
        job.train(step, fault)
        if fault is not None and (fault["kind"] in OWN or fault["kind"] in FROM_CERTAIN):
            dist.barrier()
            job.suffer(fault)


if __name__ == "__main__":
    main()
