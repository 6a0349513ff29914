"""More faults for bench/parties.py, written and labelled before Everstep was tried on them. Adds itself to `OWN` and
`TRUTH` of parties_faults."""

import asyncio
import ctypes
import errno
import fcntl
import gzip
import io
import json
import logging
import mmap
import multiprocessing
import os
import pickle
import resource
import socket
import sqlite3
import ssl
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request
from concurrent.futures import ProcessPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from matrix.parties_faults import TRUTH, Suffering, own

MORE = {
    # the program's: loud
    "recursion": "user",
    "bad-free": "user",
    "index-error-in-torch": "user",
    "in-place-gradient": "user",
    "loader-worker-raises": "user",
    "pickles-a-lambda": "user",
    "wrong-keys": "user",
    "not-in-environment": "user",
    "bad-json": "user|storage",
    "bad-text": "user|storage",
    "database-locked": "user|storage",
    "error-in-thread": "user",
    "asserts-in-pool": "user",
    "logs-and-raises": "user",
    # the program's: hanging
    "pipe-read": "user",
    "child-wait": "user",
    "asyncio-forever": "user",
    "thread-join": "user",
    "pool-map": "user",
    "thread-barrier": "user",
    "file-lock": "user|environment|storage",
    "fifo-open": "user|storage",
    "semaphore": "user",
    "spins-in-python": "user",
    # wrong numbers
    "own-noise": "user",
    # limits
    "bus-error": "environment|storage",
    "address-space": "environment|user",
    "not-executable": "user|environment",
    # storage
    "torch-save-full": "storage",
    "cut-checkpoint": "storage|user",
    "cut-gzip": "storage|user",
    "cut-tar": "storage|user",
    # network
    "http-silence": "network|user",
    "not-tls": "network|user",
    "http-404": "network|user|storage",
    "http-429": "network",
    "host-unreachable": "network",
    "peer-gone": "network",
    # people
    "quit": "operator",
    "hang-up": "operator",
}
TRUTH.update(MORE)
FOREVER_S = 1e6


@own
def recursion(job: Suffering) -> None:
    def walk(node: dict[str, object]) -> int:
        return 1 + walk(node)

    walk({"children": [job.seed]})


@own
def bad_free(_job: Suffering) -> None:
    ctypes.CDLL(None).free(ctypes.c_void_p(0x1234))


@own
def index_error_in_torch(_job: Suffering) -> None:
    import torch

    torch.nn.Embedding(10, 4)(torch.tensor([3, 11]))


@own
def in_place_gradient(_job: Suffering) -> None:
    import torch

    value = torch.ones(4, requires_grad=True)
    squared = (value * 2).sigmoid()
    squared += 1
    squared.sum().backward()


class _Rows:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return [1, 2, 3][index]


@own
def loader_worker_raises(_job: Suffering) -> None:
    from torch.utils.data import DataLoader

    list(DataLoader(_Rows(), batch_size=2, num_workers=1))  # type: ignore[arg-type]


@own
def pickles_a_lambda(_job: Suffering) -> None:
    pickle.dumps({"schedule": lambda step: 0.1})


@own
def wrong_keys(_job: Suffering) -> None:
    import torch

    torch.nn.Linear(4, 4).load_state_dict({"module.weight": torch.ones(4, 4)})


@own
def not_in_environment(_job: Suffering) -> None:
    print(os.environ["DATASET_ROOT_OF_NOBODY"])


@own
def bad_json(job: Suffering) -> None:
    path = job.folder / "ds_config.json"
    path.write_text('{"zero_optimization": {"stage": 2,}')
    json.loads(path.read_text())


@own
def bad_text(job: Suffering) -> None:
    path = job.folder / "corpus.txt"
    path.write_bytes("déjà".encode("latin-1"))
    path.read_text(encoding="utf-8")


@own
def database_locked(job: Suffering) -> None:
    path = job.folder / f"metrics-{os.getpid()}.db"
    first = sqlite3.connect(path, isolation_level=None)
    first.execute("create table run (loss real)")
    first.execute("begin exclusive")
    sqlite3.connect(path, timeout=0.2).execute("insert into run values (1.0)")


@own
def error_in_thread(_job: Suffering) -> None:
    """A thread that fetches dies, and the training ends because nothing comes."""
    failed: list[BaseException] = []

    def fetch() -> None:
        try:
            {}["shard"]
        except KeyError as error:
            failed.append(error)

    thread = threading.Thread(target=fetch)
    thread.start()
    thread.join()
    raise RuntimeError("the prefetch thread has died") from failed[0]


def _asserts(number: int) -> int:
    assert number < 2, f"shard {number} has the wrong length"
    return number


@own
def asserts_in_pool(_job: Suffering) -> None:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        list(pool.map(_asserts, range(4)))


@own
def logs_and_raises(_job: Suffering) -> None:
    """A warning about the network that it coped with, right before its own mistake."""
    logging.getLogger("hub").warning("Connection reset by peer, retrying in 1 s (attempt 1/5)")
    sizes = (3, 4)
    a, b, c = sizes  # type: ignore[misc]
    print(a, b, c)


@own
def pipe_read(_job: Suffering) -> None:
    reading, _writing = os.pipe()
    os.read(reading, 1)


@own
def child_wait(_job: Suffering) -> None:
    subprocess.run(["sleep", "100000"], check=True)


@own
def asyncio_forever(_job: Suffering) -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    asyncio.run(wait())


@own
def thread_join(_job: Suffering) -> None:
    never = threading.Event()
    thread = threading.Thread(target=never.wait, daemon=True)
    thread.start()
    thread.join()


def _sleeps(_number: int) -> None:
    time.sleep(FOREVER_S)


@own
def pool_map(_job: Suffering) -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(_sleeps, range(2))


@own
def thread_barrier(_job: Suffering) -> None:
    threading.Barrier(2).wait()


@own
def file_lock(job: Suffering) -> None:
    path = job.folder / f"lock-{os.getpid()}"
    code = (
        "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(1, flush=True); time.sleep(1e6)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


@own
def fifo_open(job: Suffering) -> None:
    path = job.folder / f"fifo-{os.getpid()}"
    os.mkfifo(path)
    path.read_bytes()


@own
def semaphore(_job: Suffering) -> None:
    multiprocessing.get_context("fork").Semaphore(0).acquire()


@own
def spins_in_python(_job: Suffering) -> None:
    ready = [False]
    while not ready[0]:
        pass


@own
def own_noise(job: Suffering) -> None:
    """A line of the program that only one rank runs changes its weights a little."""
    import torch

    with torch.no_grad():
        for parameter in job.model.parameters():  # type: ignore[attr-defined]
            parameter.add_(1e-3)


@own
def bus_error(job: Suffering) -> None:
    """Shared memory that is too small: what a container with 64 MB of /dev/shm gives to data loaders."""
    path = job.folder / "small" / f"torch_{os.getpid()}"
    with path.open("w+b") as file:
        file.truncate(8 << 20)
        with mmap.mmap(file.fileno(), 8 << 20) as memory:
            for at in range(0, 8 << 20, 4096):
                memory[at] = 1


@own
def address_space(_job: Suffering) -> None:
    import torch

    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (64 << 20), now + (64 << 20)))
    torch.ones(1 << 30)


@own
def not_executable(job: Suffering) -> None:
    path = job.folder / "prepare.sh"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o644)
    subprocess.run([str(path)], check=True)


@own
def torch_save_full(job: Suffering) -> None:
    import torch

    torch.save({"model": torch.ones(1 << 20)}, job.folder / "small" / "last.pt")


@own
def cut_checkpoint(job: Suffering) -> None:
    import torch

    path = job.folder / f"cut-{os.getpid()}.pt"
    torch.save({"model": torch.ones(1 << 16)}, path)
    path.write_bytes(path.read_bytes()[: 1 << 15])
    torch.load(path)


@own
def cut_gzip(job: Suffering) -> None:
    path = job.folder / f"cut-{os.getpid()}.gz"
    path.write_bytes(gzip.compress(os.urandom(1 << 16))[:-100])
    with gzip.open(path) as file:
        file.read()


@own
def cut_tar(job: Suffering) -> None:
    path, out = job.folder / f"shard-{os.getpid()}.tar", io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        info = tarfile.TarInfo("0001.jpg")
        info.size = 1 << 16
        tar.addfile(info, io.BytesIO(os.urandom(1 << 16)))
    path.write_bytes(out.getvalue()[:4096])
    with tarfile.open(path) as tar:
        for member in tar:
            found = tar.extractfile(member)
            assert found is not None
            found.read()


@own
def http_silence(_job: Suffering) -> None:
    """No time limit, and a server that takes the request and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        urllib.request.urlopen(f"http://127.0.0.1:{silent.getsockname()[1]}/shard-3").read()


def _serving(status: int) -> str:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(status)

        def log_message(self, *_args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"127.0.0.1:{server.server_port}"


@own
def not_tls(_job: Suffering) -> None:
    context = ssl.create_default_context()
    urllib.request.urlopen(f"https://{_serving(200)}/model", timeout=5, context=context).read()


@own
def http_404(_job: Suffering) -> None:
    urllib.request.urlopen(f"http://{_serving(404)}/org/model/resolve/main/config.json", timeout=5).read()


@own
def http_429(_job: Suffering) -> None:
    urllib.request.urlopen(f"http://{_serving(429)}/org/model/resolve/main/config.json", timeout=5).read()


@own
def host_unreachable(_job: Suffering) -> None:
    raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))


@own
def peer_gone(_job: Suffering) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    with socket.create_connection(listening.getsockname()) as connection:
        listening.accept()[0].close()
        for _ in range(1000):
            connection.sendall(b"x" * 65536)
