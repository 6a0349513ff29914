"""Faults of every party, done by a rank to itself, and whose fault each is. Used by parties_script.py and parties.py.

`OWN` are functions of a Job, called on the culprit (what the other ranks do meanwhile is in certain_kinds.OTHERS);
`TRUTH` names the party of every fault, also of those that parties_run.py does from outside.
"""

import ctypes
import errno
import importlib
import os
import random
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

TRUTH = {
    # the program's: loud, hanging, wrong numbers
    "raises": "user",
    "shapes": "user",
    "no-module": "user",
    "no-file": "user",
    "exits": "user",
    "exits-hard": "user",
    "memory-error": "user",
    "segfault": "user",
    "aborts": "user",
    "cgroup-memory": "user|environment",
    "left-early": "user",
    "skipped-collective": "user",
    "mismatched-types": "user",
    "opposite-order": "user",
    "two-locks": "user",
    "queue-get": "user",
    "loader-deadlock": "user",
    "gil-held": "user",
    "sleeps": "user",
    "left-out": "user",
    "handler-bug": "user",
    # limits of the container or the host
    "open-files": "environment",
    "threads": "environment",
    "processes": "environment",
    "file-size": "environment",
    "processor-time": "environment",
    "burners": "environment",
    # storage
    "disk-full": "storage",
    "dead-mount": "storage",
    "stale-handle": "storage",
    "disk-quota": "storage",
    "io-error": "storage",
    "read-only": "storage|environment",
    "frozen": "storage",
    # network
    "no-name": "network",
    "refused": "network",
    "service-503": "network",
    "no-answer": "network",
    "reset": "network",
    "truncated": "network",
    "wrapped": "network",
    # machines
    "lost-node": "machine",
    "xid": "machine",
    "flip-bit": "machine",
    "slow-machine": "machine",
    # people
    "kill": "operator",
    "terminate": "operator",
    "interrupt": "operator",
    "stop": "operator",
}
SPOILING = ("left-out", "flip-bit", "xid", "own-noise")
"""Replicas differ after it, or a machine stays broken that could not be evicted."""
PINNED = ("burners", "slow-machine")
"""Slow ones: their ranks are pinned to a core each and compute. So there is one rank per node: two cores have room for
two."""
OUTSIDE = (
    "burners", "cgroup-memory", "frozen", "lost-node", "xid", "flip-bit", "slow-machine",
    "kill", "terminate", "interrupt", "stop", "quit", "hang-up",
)  # fmt: skip
"""Done by the bench."""

FROM_CERTAIN = (
    "left-early", "skipped-collective", "mismatched-types", "opposite-order", "two-locks", "queue-get",
    "loader-deadlock", "gil-held", "sleeps",
)  # fmt: skip


class Suffering(Protocol):
    """What a fault needs of the training."""

    folder: Path
    seed: int
    step: int
    service: str


Own = Callable[[Suffering], None]
OWN: dict[str, Own] = {}


def own(function: Own) -> Own:
    OWN[function.__name__.replace("_", "-")] = function
    return function


def _nested(depth: int, act: Callable[[], None]) -> None:
    if depth:
        _nested(depth - 1, act)
    else:
        act()


@own
def raises(job: Suffering) -> None:
    kinds: list[Callable[[], object]] = [
        lambda: {}["weight"],
        lambda: [][3],
        lambda: int("12a"),
        lambda: 1 / (job.step - job.step),
        lambda: None + 1,  # type: ignore[operator]
        lambda: job.no_such_field,  # type: ignore[attr-defined]
        lambda: _fail(AssertionError("loss is not finite")),
        lambda: _fail(RuntimeError("expected a batch of 32, got 31")),
        lambda: _fail(NotImplementedError("bf16 on this path")),
        lambda: _fail(type("DataError", (Exception,), {})("shard 7 holds no tokens")),
    ]
    chosen = random.Random(job.seed).choice(kinds)
    _nested(random.Random(job.seed).randrange(4), lambda: (chosen(), None)[1])


def _fail(error: Exception) -> None:
    raise error


@own
def shapes(_job: Suffering) -> None:
    import torch

    torch.ones(4, 8) @ torch.ones(4, 8)


@own
def no_module(_job: Suffering) -> None:
    importlib.import_module("flash_attention_of_nobody")


@own
def no_file(job: Suffering) -> None:
    (job.folder / "tokenizer.json").read_text()


@own
def exits(job: Suffering) -> None:
    print("bad batch, giving up", file=sys.stderr)
    sys.exit(random.Random(job.seed).choice((1, 2, 7)))


@own
def exits_hard(job: Suffering) -> None:
    os._exit(random.Random(job.seed).choice((1, 3, 9)))


@own
def memory_error(_job: Suffering) -> None:
    bytearray(1 << 60)


@own
def segfault(_job: Suffering) -> None:
    ctypes.string_at(0)


@own
def aborts(_job: Suffering) -> None:
    os.abort()


@own
def open_files(_job: Suffering) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    kept = []
    while True:
        kept.append(open("/dev/null", "rb"))  # noqa: SIM115, PTH123 - it is to be too many


def _no_more_tasks(job: Suffering) -> None:
    """A cgroup in which no more than these may run."""
    group = Path(f"/sys/fs/cgroup/pids/everstep-bench-{os.getpid()}")
    group.mkdir()
    (job.folder / "cgroups").open("a").write(f"{group}\n")
    (group / "cgroup.procs").write_text(str(os.getpid()))
    (group / "pids.max").write_text(str(int((group / "pids.current").read_text())))


@own
def threads(job: Suffering) -> None:
    _no_more_tasks(job)
    threading.Thread(target=time.sleep, args=(1,), daemon=True).start()


@own
def processes(job: Suffering) -> None:
    _no_more_tasks(job)
    subprocess.run(["true"], check=True)


@own
def file_size(job: Suffering) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    (job.folder / "too-large").write_bytes(b"\1" * (4 << 20))


@own
def processor_time(_job: Suffering) -> None:
    limit = int(time.process_time()) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 60))
    while True:
        pass


@own
def disk_full(job: Suffering) -> None:
    with (job.folder / "small" / "checkpoint.pt").open("wb") as file:
        for _ in range(1000):
            file.write(b"\1" * 65536)


@own
def dead_mount(job: Suffering) -> None:
    (job.folder / "dead" / "shard-0").read_bytes()


@own
def stale_handle(job: Suffering) -> None:
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(job.folder / "data" / "shard-0"))


@own
def disk_quota(job: Suffering) -> None:
    raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(job.folder / "data" / "shard-0"))


@own
def io_error(job: Suffering) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO), str(job.folder / "data" / "shard-0"))


@own
def read_only(job: Suffering) -> None:
    (job.folder / "read-only" / "checkpoint.pt").write_bytes(b"1")


@own
def no_name(_job: Suffering) -> None:
    socket.create_connection(("bucket.storage.invalid", 443), 5)


@own
def refused(_job: Suffering) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    urllib.request.urlopen(f"http://127.0.0.1:{port}/batch", timeout=5).read()


@own
def service_503(job: Suffering) -> None:
    urllib.request.urlopen(job.service, timeout=5).read()


@own
def no_answer(_job: Suffering) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        urllib.request.urlopen(f"http://127.0.0.1:{silent.getsockname()[1]}/x", timeout=1.5).read()


def _answering(reply: bytes, *, resets: bool = False) -> str:
    """The address of a service that gives this answer, once."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listening.accept()
        connection.recv(65536)
        if resets:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            connection.sendall(reply)
        connection.close()

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listening.getsockname()[1]}/shard"


@own
def reset(_job: Suffering) -> None:
    urllib.request.urlopen(_answering(b"", resets=True), timeout=5).read()


@own
def truncated(_job: Suffering) -> None:
    urllib.request.urlopen(_answering(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc"), timeout=5).read()


@own
def wrapped(job: Suffering) -> None:
    try:
        no_answer(job)
    except OSError as error:
        raise RuntimeError("shard 7 cannot be fetched") from error


@own
def handler_bug(job: Suffering) -> None:
    try:
        refused(job)
    except OSError:
        {}["fallback"]
