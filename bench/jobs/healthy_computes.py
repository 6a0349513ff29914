"""Healthy kinds that compute or move bytes: evaluation, collection, compression, compiling, saving.

Imported by healthy_script.py; each function is a kind (see healthy_job.py).
"""

import concurrent.futures
import gc
import hashlib
import json
import os
import pickle
import re
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import Callable

import numpy
import torch
import torch.distributed.checkpoint as dcp

from jobs.healthy_job import WIDTH, Job, act

BUSY = "import sys, time; end = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: sum(range(9999))"


def _for(seconds: float, piece: Callable[[], object]) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        piece()


@act
def evaluation(job: Job, seconds: float) -> None:
    with torch.no_grad():
        _for(seconds, lambda: job.model(torch.randn(64, WIDTH)).sum().item())


@act
def evaluation_mode(job: Job, seconds: float) -> None:
    """In eval mode, with data that comes slowly."""
    job.ddp.eval()
    with torch.no_grad():
        _for(seconds, lambda: (job.model(torch.randn(64, WIDTH)).sum().item(), time.sleep(0.4)))
    job.ddp.train()


@act
def garbage(_job: Job, seconds: float) -> None:
    heap = [[str(i), {i: i}] for i in range(300_000)]
    _for(seconds, gc.collect)
    del heap


@act
def regex(_job: Job, seconds: float) -> None:
    """C code that keeps the interpreter lock for seconds at a time."""
    _for(seconds, lambda: re.match(r"(a+)+$", "a" * 22 + "b"))


@act
def sorting(_job: Job, seconds: float) -> None:
    rows = numpy.random.default_rng(0).random(1_500_000).tolist()
    _for(seconds, lambda: sorted(rows))


@act
def compression(_job: Job, seconds: float) -> None:
    data = os.urandom(1 << 20) * 24
    _for(seconds, lambda: zlib.compress(data, 9))


@act
def archive(job: Job, seconds: float) -> None:
    (job.folder / f"big-{job.rank}").write_bytes(os.urandom(1 << 20) * 8)

    def pack() -> None:
        with tarfile.open(job.folder / f"all-{job.rank}.tar.gz", "w:gz") as tar:
            tar.add(job.folder / f"big-{job.rank}", "big")

    _for(seconds, pack)


@act
def file_hash(job: Job, seconds: float) -> None:
    path = job.folder / f"hashed-{job.rank}"
    path.write_bytes(b"x" * (64 << 20))
    _for(seconds, lambda: hashlib.sha256(path.read_bytes()).hexdigest())


@act
def numpy_work(_job: Job, seconds: float) -> None:
    matrix = numpy.random.default_rng(0).random((500, 500))
    _for(seconds, lambda: numpy.linalg.svd(matrix))


@act
def python_loop(_job: Job, seconds: float) -> None:
    """Rows of text, in one line of Python."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ",".join(sorted(str(i * 7 % 977) for i in range(500)))


@act
def json_rows(_job: Job, seconds: float) -> None:
    rows = [{"id": i, "text": "x" * 40} for i in range(60_000)]
    _for(seconds, lambda: json.loads(json.dumps(rows)))


@act
def pickling(_job: Job, seconds: float) -> None:
    rows = [(i, str(i)) for i in range(300_000)]
    _for(seconds, lambda: pickle.loads(pickle.dumps(rows)))


@act
def recompiling(job: Job, seconds: float) -> None:
    """torch.compile sees a new shape again and again."""
    width = iter(range(2, 1_000_000))

    def one() -> None:
        torch._dynamo.reset()
        step = torch.compile(lambda x: (x * 2).relu().sum(), backend="aot_eager", dynamic=False)
        step(torch.randn(next(width), requires_grad=True))

    _for(seconds, one)


@act
def lr_finder(job: Job, seconds: float) -> None:
    """Hundreds of steps of one rank alone."""
    optimizer = torch.optim.SGD(job.model.parameters(), lr=1e-7)

    def one() -> None:
        optimizer.zero_grad()
        job.model(torch.randn(16, WIDTH)).square().mean().backward()
        optimizer.param_groups[0]["lr"] *= 1.0001

    _for(seconds, one)


@act
def profiler(job: Job, seconds: float) -> None:
    """Traces are made and written."""

    def one() -> None:
        with torch.profiler.profile() as trace:
            for _ in range(100):
                job.model(torch.randn(16, WIDTH))
        trace.export_chrome_trace(str(job.folder / f"trace-{job.rank}.json"))

    _for(seconds, one)


@act
def thread_computes(_job: Job, seconds: float) -> None:
    """Native code without the interpreter lock, in a thread that the main thread waits for."""
    matrix = torch.ones(500, 500)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(_for, seconds, lambda: matrix @ matrix).result()


@act
def child_computes(_job: Job, seconds: float) -> None:
    subprocess.run([sys.executable, "-c", BUSY, str(seconds)], check=True)


@act
def save_big(job: Job, seconds: float) -> None:
    """More than 100 MB, to the disk each time."""
    data = {"weights": torch.zeros(28_000_000)}

    def one() -> None:
        with (job.folder / f"big-{job.rank}.pt").open("wb") as file:
            torch.save(data, file)
            os.fsync(file.fileno())

    _for(seconds, one)


@act
def load_big(job: Job, seconds: float) -> None:
    path = job.folder / f"load-{job.rank}.pt"
    torch.save({"weights": torch.zeros(10_000_000)}, path)
    _for(seconds, lambda: torch.load(path))


@act
def async_save(job: Job, seconds: float) -> None:
    """Checkpoints by a thread; the program waits for each."""
    path = job.folder / f"dcp-{job.rank}"
    _for(seconds, lambda: dcp.async_save({"model": job.model.state_dict()}, checkpoint_id=path, no_dist=True).result())


@act
def copy_throttled(job: Job, seconds: float) -> None:
    """To a file server with a limit: a little, and again."""
    path = job.folder / f"copied-{job.rank}"
    with path.open("wb") as file:
        _for(seconds, lambda: (file.write(b"x" * 65536), time.sleep(0.25)))


@act
def waves(_job: Job, seconds: float) -> None:
    """Computes for a moment, waits for a moment."""
    _for(seconds, lambda: (sum(range(300_000)), time.sleep(0.7)))
