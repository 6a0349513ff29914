"""The training that every healthy irregular program is made of: DDP over gloo, steps of about 60 ms.

Plain, it does not know that everstep exists; with `state`, its loop is everstep.State's. Writes what it does into
files of its own (`events-RANK.jsonl`), and ends when the file `over` appears. Used by healthy_script.py and
certain_script.py.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 64
STEP_S = 0.05
EVERY = 12
"""Steps from one irregularity to the next: as many as the hang rule wants to know what is usual."""


class Notes:
    """What one rank does and when, for the benchmark; open before there is a process group."""

    def __init__(self) -> None:
        self.folder = Path(os.environ["EVERSTEP_BENCH_DIR"])
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._file: TextIO = (self.folder / f"events-{self.rank}.jsonl").open("a")
        self.write("start", pid=os.getpid())

    def write(self, what: str, **more: object) -> None:
        self._file.write(json.dumps({"what": what, "at": time.time(), **more}) + "\n")
        self._file.flush()


@dataclass(frozen=True, kw_only=True)
class Wish:
    """How a program is to be irregular. `who`: one rank (the first), some (the last), or all."""

    kind: str
    seconds: float
    who: str
    state: bool

    def concerns(self, rank: int, size: int) -> bool:
        return {"one": rank == 0, "some": rank == size - 1, "all": True}[self.who]


class Job:
    def __init__(self, wish: Wish, notes: Notes, limit_s: float | None = None) -> None:
        """`limit_s`: how long a collective may take; None: as long as torch allows."""
        self.wish, self.notes, self.folder = wish, notes, notes.folder
        dist.init_process_group("gloo", timeout=None if limit_s is None else timedelta(seconds=limit_s))
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        torch.set_num_threads(1)
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
        self.ddp = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.server = os.environ.get("EVERSTEP_BENCH_SERVER", "")
        self.count = 0  # of irregularities in this process

    @property
    def concerned(self) -> bool:
        return self.wish.concerns(self.rank, self.size)

    def steps(self) -> Iterator[int]:
        """Until rank 0 sees that it is over, which it tells all others."""
        flag = torch.zeros(1, dtype=torch.int32)
        for step in self._numbers():
            yield step
            if step % EVERY == 0:
                self.notes.write("step", step=step)
            flag.fill_(int((self.folder / "over").exists()))
            dist.broadcast(flag, 0)
            if flag.item():
                return

    def _numbers(self) -> Iterator[int]:
        if not self.wish.state:
            yield from range(1_000_000_000)
            return
        import everstep

        state: Any = everstep.State(model=self.model, optimizer=self.optimizer)
        yield from state.steps(1_000_000_000)

    def train(self, batch: torch.Tensor | None = None, sleep_s: float = STEP_S) -> None:
        data = torch.randn(16, WIDTH) if batch is None else batch
        loss = (self.ddp(data) - data).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        time.sleep(sleep_s)
        self.optimizer.step()

    @contextlib.contextmanager
    def irregular(self) -> Iterator[float]:
        """Around what is unusual, on the ranks that do it; yields how long it is to take."""
        self.count += 1
        self.notes.write("begin")
        yield self.wish.seconds
        self.notes.write("end")

    def is_due(self, step: int) -> bool:
        return step % EVERY == EVERY - 1 and self.concerned


Act = Callable[[Job, float], None]
Shape = Callable[[Job], None]
ACTS: dict[str, Act] = {}
"""Something unusual between two steps, for so many seconds."""

SHAPES: dict[str, Shape] = {}
"""Programs whose loop itself is unusual."""


def act(function: Act) -> Act:
    ACTS[function.__name__.replace("_", "-")] = function
    return function


def shape(function: Shape) -> Shape:
    SHAPES[function.__name__.replace("_", "-")] = function
    return function


def run_act(job: Job, function: Act) -> None:
    """Now and then a barrier follows; else the others meet whoever is late in the next step's own collectives."""
    for step in job.steps():
        job.train()
        if job.is_due(step):
            with job.irregular() as seconds:
                function(job, seconds)
        if step % (2 * EVERY) == EVERY - 1:
            dist.barrier()
