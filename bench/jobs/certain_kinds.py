"""Hangs: what a rank does that nobody can release, and what somebody could still end. Each never ends by itself.

`CERTAIN` and `DOUBTFUL` name functions of a Job, called on the culprit; what the other ranks do meanwhile is in
`OTHERS`, else they go on to the next step. Used by certain_script.py.
"""

import ctypes
import fcntl
import multiprocessing
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from jobs.healthy_job import WIDTH, Job

FORK = multiprocessing.get_context("fork")
FOREVER_S = 1e6
Act = Callable[[Job], None]
CERTAIN: dict[str, Act] = {}
DOUBTFUL: dict[str, Act] = {}
OTHERS: dict[str, Act] = {}


def certain(function: Act) -> Act:
    CERTAIN[function.__name__.replace("_", "-")] = function
    return function


def doubtful(function: Act) -> Act:
    DOUBTFUL[function.__name__.replace("_", "-")] = function
    return function


def others(kind: str) -> Callable[[Act], Act]:
    def mark(function: Act) -> Act:
        OTHERS[kind] = function
        return function

    return mark


@certain
def stopped(_job: Job) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@certain
def skipped_collective(_job: Job) -> None:
    """It goes on to the next step; the others wait for it in a barrier."""


@others("skipped-collective")
def _barrier(_job: Job) -> None:
    dist.barrier()


@certain
def mismatched_types(job: Job) -> None:
    dist.all_gather([torch.zeros(8) for _ in range(job.size)], torch.ones(8))


@others("mismatched-types")
def _all_reduce(_job: Job) -> None:
    dist.all_reduce(torch.ones(8))


def _groups(job: Job) -> list[dist.ProcessGroup]:
    return [dist.new_group(list(range(job.size))) for _ in range(2)]


@certain
def opposite_order(job: Job) -> None:
    for group in reversed(_groups(job)):
        dist.all_reduce(torch.ones(8), group=group)


@others("opposite-order")
def _usual_order(job: Job) -> None:
    for group in _groups(job):
        dist.all_reduce(torch.ones(8), group=group)


@certain
def wrong_membership(job: Job) -> None:
    """It takes part in a group of all ranks, where the others use the default group."""
    dist.barrier(group=_groups(job)[0])


@others("wrong-membership")
def _default_group(job: Job) -> None:
    _groups(job)
    dist.barrier()


@certain
def other_shape(_job: Job) -> None:
    dist.broadcast(torch.ones(8), 0)


@others("other-shape")
def _large_shape(_job: Job) -> None:
    dist.broadcast(torch.ones(4_000_000), 0)


@certain
def recv_nobody_sends(_job: Job) -> None:
    dist.recv(torch.zeros(8), 0)


@others("recv-nobody-sends")
def _send_nothing(_job: Job) -> None:
    dist.barrier()


def _store_wait(_job: Job) -> None:
    store = dist.distributed_c10d._get_default_store()
    store.wait(["nobody-sets-this"], timedelta(hours=2))


@certain
def store_key(job: Job) -> None:
    _store_wait(job)


OTHERS["store-key"] = _store_wait


@certain
def two_locks(_job: Job) -> None:
    first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def one(mine: threading.Lock, yours: threading.Lock) -> None:
        with mine:
            both.wait()
            with yours:
                pass

    threading.Thread(target=one, args=(first, second), daemon=True).start()
    one(second, first)


@certain
def queue_get(_job: Job) -> None:
    queue.Queue().get()


@certain
def queue_put(_job: Job) -> None:
    full: queue.Queue[int] = queue.Queue(1)
    full.put(1)
    full.put(2)


@certain
def dead_threads_lock(_job: Job) -> None:
    lock = threading.Lock()
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    thread.join()
    lock.acquire()


@certain
def own_lock(_job: Job) -> None:
    lock = threading.Lock()
    with lock:
        lock.acquire()


@certain
def join_of_a_waiter(_job: Job) -> None:
    """The main thread holds the lock for which the thread waits that it joins."""
    lock = threading.Lock()
    with lock:
        thread = threading.Thread(target=lock.acquire, daemon=True)
        thread.start()
        thread.join()


@certain
def event_wait(_job: Job) -> None:
    threading.Event().wait()


@certain
def condition_wait(_job: Job) -> None:
    condition = threading.Condition()
    with condition:
        condition.wait()


@certain
def gil_held(_job: Job) -> None:
    ctypes.PyDLL(None).sleep(1_000_000)


@certain
def dead_childs_semaphore(_job: Job) -> None:
    gate = FORK.Semaphore(1)
    child = FORK.Process(target=gate.acquire)
    child.start()
    child.join()
    gate.acquire()


class _Deadlocked(IterableDataset[torch.Tensor]):  # type: ignore[misc, unused-ignore]
    def __iter__(self) -> Iterator[torch.Tensor]:
        lock = threading.Lock()
        with lock, lock:
            yield torch.zeros(WIDTH)


@certain
def loader_deadlock(_job: Job) -> None:
    next(iter(DataLoader(_Deadlocked(), batch_size=None, num_workers=1)))


@certain
def left_early(_job: Job) -> None:
    """It ends with 0 while the others still need it."""
    sys.stdout.flush()
    os._exit(0)


@certain
def sleeps(_job: Job) -> None:
    """For longer than the others may wait."""
    time.sleep(FOREVER_S)


@doubtful
def server_never_answers(job: Job) -> None:
    urllib.request.urlopen(f"{job.server}/late?seconds={FOREVER_S}").read()


@doubtful
def polls(job: Job) -> None:
    while not (job.folder / "never").exists():
        time.sleep(0.1)


@doubtful
def child_sleeps(_job: Job) -> None:
    subprocess.run(["sleep", "1000000"], check=True)


@doubtful
def thread_waits_for_network(job: Job) -> None:
    thread = threading.Thread(target=server_never_answers, args=(job,), daemon=True)
    thread.start()
    thread.join()


@doubtful
def socket_of_another(_job: Job) -> None:
    ours, _theirs = socket.socketpair()
    ours.recv(1)


_HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(1e6)
"""


@doubtful
def file_lock(job: Job) -> None:
    path = job.folder / "held"
    child = subprocess.Popen([sys.executable, "-c", _HOLD, str(path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


@doubtful
def loop_python(_job: Job) -> None:
    number = 0
    while True:
        number = (number * 7 + 1) % 1_000_003


@doubtful
def loop_torch(_job: Job) -> None:
    matrix = torch.ones(300, 300)
    while True:
        matrix @ matrix


@doubtful
def loop_child(_job: Job) -> None:
    subprocess.run([sys.executable, "-c", "while True: pass"], check=True)


@doubtful
def loop_retries(job: Job) -> None:
    while True:
        try:
            urllib.request.urlopen(f"{job.server}/refused").read()
        except OSError:
            time.sleep(1.0)
