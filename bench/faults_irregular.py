"""Healthy trainings that look odd from outside. Each is one way in which a job without any fault is irregular.

    everstep run --nproc-per-node 2 faults_irregular.py KIND SECONDS

Answers nothing: bench/faults.py --healthy counts what everstep says of it. Must not announce anything to everstep
unless the kind is about announcing: what counts is the program of somebody who never read our documentation.
"""

import gc
import multiprocessing
import os
import pdb
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

import everstep

WIDTH = 128
STEP_S = 0.08


class Loop:
    """The state that every kind has: a DDP model, its optimizer, and dice of its own per rank."""

    def __init__(self, seconds: float) -> None:
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
        self.ddp = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.state = everstep.State(model=self.model, optimizer=self.optimizer)
        self.dice = random.Random(self.rank)
        self.common = random.Random(7)  # draws the same on every rank
        self.seconds = seconds
        self.folder = os.environ.get("TMPDIR", ".")

    def steps(self) -> Iterator[int]:
        """Until the time is over, which rank 0 decides for all."""
        begun = time.monotonic()
        fd = os.open(os.environ["EVERSTEP_BENCH_STEPS"], os.O_RDWR | os.O_CREAT) if self.rank == 0 else -1
        for step in self.state.steps(1_000_000_000):
            yield step
            if fd >= 0:
                os.pwrite(fd, struct.pack("<q", step), 0)
            if step % 10 == 0:
                over = torch.tensor([time.monotonic() - begun > self.seconds], dtype=torch.int32)
                dist.broadcast(over, 0)
                if over.item():
                    return

    def train(self, batch: torch.Tensor | None = None, sleep_s: float = STEP_S) -> float:
        data = torch.randn(16, WIDTH) if batch is None else batch
        loss = (self.ddp(data) - data).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        time.sleep(sleep_s)
        self.optimizer.step()
        return float(loss.detach())


def work(seconds: float, model: nn.Module) -> None:
    """Use a processor, as an evaluation does."""
    end = time.monotonic() + seconds
    with torch.no_grad():
        while time.monotonic() < end:
            model(torch.randn(64, WIDTH)).sum().item()


def lengths(loop: Loop) -> None:
    """Sequences of another length in every step and on every rank; a few are very long."""
    for step in loop.steps():
        long = loop.dice.random() < 0.02
        loop.train(sleep_s=loop.dice.uniform(0.01, 0.15) + (0.8 if long else 0.0))
        if step % 5 == 0:
            print("step", step, flush=True)


def evaluation(loop: Loop) -> None:
    """Every 60 steps all ranks evaluate, or rank 0 alone while the others wait at a barrier; nothing is announced."""
    for step in loop.steps():
        print("loss", step, loop.train(), flush=True)
        if step % 60 == 59:
            if step % 120 == 59 or loop.rank == 0:
                work(loop.common.uniform(3.0, 8.0), loop.model)
            dist.barrier()


def announced(loop: Loop) -> None:
    """An evaluation in eval mode whose data comes slowly, without using the processor."""
    for step in loop.steps():
        loop.train()
        if step % 80 == 79:
            loop.ddp.eval()
            end = time.monotonic() + 5.0
            while time.monotonic() < end:
                work(0.02, loop.model)
                time.sleep(0.5)
            loop.ddp.train()
            dist.barrier()


class SlowFile:
    """A disk that takes its time, without using a processor."""

    def __init__(self, path: str, piece_s: float) -> None:
        self._file = open(path, "wb")  # noqa: SIM115, PTH123 - closed by its user
        self._piece_s = piece_s

    def write(self, data: Any) -> int:  # noqa: ANN401
        time.sleep(self._piece_s)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def checkpoint(loop: Loop) -> None:
    """Saves that take five to twenty seconds: of rank 0 while the others wait, or of all ranks."""
    for step in loop.steps():
        loop.train()
        if step % 70 == 69:
            if loop.rank == 0 or step % 140 == 69:
                file = SlowFile(f"{loop.folder}/save-{loop.rank}", loop.common.uniform(0.02, 0.1))
                torch.save({"model": loop.model.state_dict(), "optimizer": loop.optimizer.state_dict()}, file)
                file.close()
            dist.barrier()


def garbage(loop: Loop) -> None:
    """Full collections of a large heap, on one rank at a time."""
    heap = [[str(i), {i: i}] for i in range(400_000)]
    for step in loop.steps():
        loop.train()
        if step % 20 == loop.rank:
            for _ in range(loop.dice.choice((1, 4, 8))):
                gc.collect()
    del heap


class Samples(IterableDataset[torch.Tensor]):  # type: ignore[misc, unused-ignore]
    """Now and then a batch has to be fetched from far away: waiting, reading, or decoding."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        dice = random.Random(os.getpid())
        while True:
            luck = dice.random()
            if luck < 0.01:
                time.sleep(dice.uniform(2.0, 6.0))
            elif luck < 0.02:
                with open("/dev/urandom", "rb") as file:  # noqa: PTH123
                    for _ in range(20):
                        file.read(1 << 20)
                        time.sleep(0.2)
            elif luck < 0.03:
                work(dice.uniform(2.0, 4.0), nn.Linear(WIDTH, WIDTH))
            yield torch.randn(16, WIDTH)


def loader(loop: Loop) -> None:
    batches = iter(DataLoader(Samples(), batch_size=None, num_workers=1, prefetch_factor=2))
    for _ in loop.steps():
        loop.train(next(batches))


class Epoch(IterableDataset[torch.Tensor]):  # type: ignore[misc, unused-ignore]
    """Every epoch begins with new loader processes that first make an index."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        work(random.uniform(2.0, 5.0), nn.Linear(WIDTH, WIDTH))
        for _ in range(60):
            yield torch.randn(16, WIDTH)


def epochs(loop: Loop) -> None:
    context = "spawn" if loop.rank else "fork"  # the one imports torch again, the other does not
    batches: Iterator[torch.Tensor] = iter(())
    for _ in loop.steps():
        batch = next(batches, None)
        if batch is None:
            del batches
            batches = iter(DataLoader(Epoch(), batch_size=None, num_workers=1, multiprocessing_context=context))
            batch = next(batches)
        loop.train(batch)


def helpers(loop: Loop) -> None:
    """The main thread waits for threads or processes of its own that compute, for seconds at a time."""
    with ThreadPoolExecutor(1) as threads, multiprocessing.get_context("fork").Pool(1) as processes:
        for step in loop.steps():
            loop.train()
            if step % 60 == 30 and loop.rank == 0:
                seconds = loop.dice.uniform(3.0, 6.0)
                if step % 180 == 30:
                    threads.submit(multiply, seconds).result()
                elif step % 180 == 90:
                    processes.apply(multiply, (seconds,))
                else:
                    subprocess.run([sys.executable, "-c", BUSY, str(seconds)], check=True)


BUSY = "import sys, time; end = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: sum(range(9999))"


def multiply(seconds: float) -> None:
    """Native code without the interpreter lock."""
    end = time.monotonic() + seconds
    matrix = torch.ones(600, 600)
    while time.monotonic() < end:
        matrix @ matrix


def compiling(loop: Loop) -> None:
    """A first step of twelve seconds, and again four seconds whenever a new shape comes."""
    for step in loop.steps():
        if step == 0:
            work(6.0, loop.model)
            time.sleep(6.0)
        elif step % 90 == 89:
            work(4.0, loop.model)
        loop.train()


def debugger(loop: Loop) -> None:
    """Somebody sets a breakpoint on one rank and looks around for a while."""
    for step in loop.steps():
        loop.train()
        if step % 100 == 50 and loop.rank == 1:
            read, write = os.pipe()
            person = threading.Timer(6.0, os.write, (write, b"p step\nc\n"))
            person.start()
            with os.fdopen(read) as keyboard, open(os.devnull, "w") as screen:  # noqa: PTH123
                pdb.Pdb(stdin=keyboard, stdout=screen, nosigint=True).set_trace()
                step += 0  # where the debugger stops
                person.join()
                os.close(write)


def announced_pause(loop: Loop) -> None:
    """What everstep cannot know and the program says: one rank waits for a person for forty seconds."""
    for step in loop.steps():
        loop.train()
        if step % 150 == 75 and loop.rank == 0:
            with everstep.paused("somebody looks at the samples"):
                time.sleep(40.0)


def outside(loop: Loop) -> None:
    """One rank waits in the middle of its loop, without a loader, for something that is not the job's: a timer, or a
    server that answers late."""
    ours, theirs = socket.socketpair()
    for step in loop.steps():
        loop.train()
        if step % 90 == 45 and loop.rank == step // 90 % loop.size:
            if step % 180 == 45:
                time.sleep(loop.dice.uniform(3.0, 12.0))
            else:
                server = threading.Timer(loop.dice.uniform(3.0, 12.0), theirs.send, (b"x",))
                server.start()
                ours.recv(1)
                server.join()


def computing(loop: Loop) -> None:
    """No waiting at all: every step is arithmetic, now and then a very long one."""
    for step in loop.steps():
        work(loop.dice.uniform(0.02, 0.1) + (3.0 if step % 100 == 77 else 0.0), loop.model)
        loop.train(sleep_s=0.0)
        if step % 50 == 0 and loop.rank == 0:
            print("step", step, flush=True)


def writing(loop: Loop) -> None:
    """Preprocessing in plain Python on one rank: rows of text, for seconds at a time."""
    for step in loop.steps():
        loop.train()
        if step % 80 == 40 and loop.rank == 0:
            end = time.monotonic() + 4.0
            rows: list[str] = []
            while time.monotonic() < end:
                rows = [",".join(sorted(str(i * step % 977) for i in range(500))) for _ in range(20)]
            print(len(rows), flush=True)


KINDS: dict[str, Callable[[Loop], None]] = {
    "lengths": lengths,
    "evaluation": evaluation,
    "announced": announced,
    "checkpoint": checkpoint,
    "garbage": garbage,
    "loader": loader,
    "epochs": epochs,
    "helpers": helpers,
    "compiling": compiling,
    "debugger": debugger,
    "announced-pause": announced_pause,
    "outside": outside,
    "computing": computing,
    "writing": writing,
}


def main() -> None:
    loop = Loop(float(sys.argv[2]))
    KINDS[sys.argv[1]](loop)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
