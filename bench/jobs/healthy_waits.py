"""Healthy kinds that wait: for a server, a child, a thread, a lock, a file, a clock. Each ends by itself.

Imported by healthy_script.py; each function is a kind (see healthy_job.py).
"""

import asyncio
import concurrent.futures
import contextlib
import fcntl
import logging.handlers
import multiprocessing
import os
import pdb
import queue
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import torch
import torch.distributed as dist

from jobs.healthy_job import Job, act

FORK = multiprocessing.get_context("fork")


@act
def sleep(_job: Job, seconds: float) -> None:
    time.sleep(seconds)


def _get(job: Job, seconds: float, how: str = "late", data: bytes | None = None) -> bytes:
    request = urllib.request.Request(f"{job.server}/{how}?seconds={seconds}", data=data)
    with urllib.request.urlopen(request, timeout=600) as answer:
        found: bytes = answer.read()
        return found


@act
def upload(job: Job, seconds: float) -> None:
    _get(job, seconds, data=b"x" * 1_000_000)


@act
def download_late(job: Job, seconds: float) -> None:
    _get(job, seconds)


@act
def download_slow(job: Job, seconds: float) -> None:
    _get(job, seconds, "slow")


@act
def retries(job: Job, seconds: float) -> None:
    """The server refuses, and the client asks again with growing pauses."""
    end, pause = time.monotonic() + seconds, 0.5
    while time.monotonic() < end:
        with contextlib.suppress(urllib.error.HTTPError):
            _get(job, 0.0, "refused")
        time.sleep(min(pause, max(0.0, end - time.monotonic())))
        pause *= 2


@act
def polling_file(job: Job, seconds: float) -> None:
    path = job.folder / f"appears-{job.rank}-{job.count}"
    with subprocess.Popen(["sh", "-c", f"sleep {seconds}; touch {path}"]):
        while not path.exists():
            time.sleep(0.1)


@act
def child_run(_job: Job, seconds: float) -> None:
    subprocess.run(["sleep", str(seconds)], check=True)


@act
def grandchild(_job: Job, seconds: float) -> None:
    subprocess.run(["sh", "-c", f"sh -c 'sleep {seconds}; true'; true"], check=True)


@act
def child_output(_job: Job, seconds: float) -> None:
    """The main thread reads the pipe of a child that says nothing for long."""
    with subprocess.Popen(["sh", "-c", f"sleep {seconds}; echo done"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()


@act
def child_input(_job: Job, seconds: float) -> None:
    """The main thread writes more than a slow child takes."""
    with subprocess.Popen(["sh", "-c", f"sleep {seconds}; cat > /dev/null"], stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        child.stdin.write(b"x" * 1_000_000)
        child.stdin.close()


@act
def thread_join_network(job: Job, seconds: float) -> None:
    thread = threading.Thread(target=_get, args=(job, seconds))
    thread.start()
    thread.join()


@act
def queue_get_network(job: Job, seconds: float) -> None:
    answers: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=lambda: answers.put(_get(job, seconds)), daemon=True).start()
    answers.get()


@act
def future_network(job: Job, seconds: float) -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        pool.submit(_get, job, seconds, "slow").result()


@act
def future_retries(job: Job, seconds: float) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(retries, job, seconds).result()


@act
def event_timer(_job: Job, seconds: float) -> None:
    done = threading.Event()
    threading.Timer(seconds, done.set).start()
    done.wait()


@act
def condition_loop(_job: Job, seconds: float) -> None:
    """A condition that is looked at once a second; a thread that sleeps fulfils it."""
    condition, ready = threading.Condition(), []

    def fulfil() -> None:
        time.sleep(seconds)
        with condition:
            ready.append(True)
            condition.notify_all()

    threading.Thread(target=fulfil, daemon=True).start()
    with condition:
        while not ready:
            condition.wait(1.0)


@act
def lock_thread(_job: Job, seconds: float) -> None:
    """Another thread holds the lock while it waits for a child."""
    lock = threading.Lock()
    lock.acquire()

    def hold() -> None:
        subprocess.run(["sleep", str(seconds)], check=True)
        lock.release()

    threading.Thread(target=hold, daemon=True).start()
    with lock:
        pass


@act
def chain_of_threads(job: Job, seconds: float) -> None:
    """The main thread waits for one that waits for one that waits for the network."""
    first = threading.Thread(target=_get, args=(job, seconds))
    second = threading.Thread(target=first.join)
    first.start()
    second.start()
    second.join()


@act
def queue_join(job: Job, seconds: float) -> None:
    """A writer thread, as loggers of metrics have: the main thread waits until it has sent everything."""
    rows: queue.Queue[float] = queue.Queue()

    def send() -> None:
        for _ in range(4):
            _get(job, rows.get())
            rows.task_done()

    threading.Thread(target=send, daemon=True).start()
    for _ in range(4):
        rows.put(seconds / 4)
    rows.join()


@act
def logging_thread(job: Job, seconds: float) -> None:
    records: queue.Queue[object] = queue.Queue()

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            _get(job, seconds)

    listener = logging.handlers.QueueListener(records, Slow())
    listener.start()
    records.put(logging.makeLogRecord({"msg": "loss"}))
    listener.stop()


@act
def process_pool(_job: Job, seconds: float) -> None:
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=FORK) as pool:
        pool.submit(time.sleep, seconds).result()


@act
def pool_apply(_job: Job, seconds: float) -> None:
    with FORK.Pool(1) as pool:
        pool.apply(time.sleep, (seconds,))


@act
def child_queue(_job: Job, seconds: float) -> None:
    rows = FORK.Queue()

    def late() -> None:
        time.sleep(seconds)
        rows.put("row")

    child = FORK.Process(target=late)
    child.start()
    rows.get()
    child.join()


@act
def child_semaphore(_job: Job, seconds: float) -> None:
    gate = FORK.Semaphore(0)

    def late() -> None:
        time.sleep(seconds)
        gate.release()

    child = FORK.Process(target=late)
    child.start()
    gate.acquire()
    child.join()


@act
def asyncio_network(job: Job, seconds: float) -> None:
    async def serve() -> None:
        host, port = job.server.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET /late?seconds={seconds} HTTP/1.0\r\n\r\n".encode())
        await reader.read()
        writer.close()

    asyncio.run(serve())


@act
def asyncio_sleep(_job: Job, seconds: float) -> None:
    asyncio.run(asyncio.sleep(seconds))


@act
def asyncio_thread(job: Job, seconds: float) -> None:
    asyncio.run(asyncio.to_thread(_get, job, seconds))


_HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


@act
def flock_child(job: Job, seconds: float) -> None:
    """A lock on a file that another process holds."""
    path = job.folder / f"lock-{job.rank}"
    with subprocess.Popen([sys.executable, "-c", _HOLD, path, str(seconds)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)


@act
def flock_ranks(job: Job, seconds: float) -> None:
    """Ranks take turns with a file; each keeps it for long (who: all)."""
    with (job.folder / "turns").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        time.sleep(seconds)


@act
def sqlite_lock(job: Job, seconds: float) -> None:
    path = str(job.folder / f"rows-{job.rank}.db")
    with sqlite3.connect(path) as ours:
        ours.execute("create table if not exists rows (x)")
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("begin exclusive")
    threading.Timer(seconds, lambda: holder.execute("commit")).start()
    with sqlite3.connect(path, timeout=600) as waiting:
        waiting.execute("insert into rows values (1)")


@act
def store_key(job: Job, seconds: float) -> None:
    """The concerned rank sets the key late, from a thread of its own, and waits for it like the others might."""
    store = dist.distributed_c10d._get_default_store()
    key = f"ready-{job.rank}-{job.count}-{os.getpid()}"
    threading.Timer(seconds, store.clone().set, (key, "1")).start()
    store.wait([key])


@act
def fifo_open(job: Job, seconds: float) -> None:
    path = job.folder / f"fifo-{job.rank}-{job.count}-{os.getpid()}"
    os.mkfifo(path)
    with subprocess.Popen(["sh", "-c", f"sleep {seconds}; echo x > {path}"]):
        path.read_bytes()


@act
def select_socket(_job: Job, seconds: float) -> None:
    ours, theirs = socket.socketpair()
    threading.Timer(seconds, theirs.send, (b"x",)).start()
    while not select.select([ours], [], [], 1.0)[0]:
        pass
    ours.close()
    theirs.close()


@act
def sigwait(_job: Job, seconds: float) -> None:
    old = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.pause()
    signal.signal(signal.SIGALRM, old)


@act
def signal_handler(job: Job, seconds: float) -> None:
    """The handler saves and uploads, within the main thread."""
    old = signal.signal(signal.SIGUSR1, lambda *_: _get(job, seconds) and None)
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, old)


@act
def debugger(_job: Job, seconds: float) -> None:
    """Somebody sets a breakpoint and looks around for a while."""
    read, write = os.pipe()
    person = threading.Timer(seconds, os.write, (write, b"p seconds\nc\n"))
    person.start()
    with os.fdopen(read) as keyboard, open(os.devnull, "w") as screen:  # noqa: PTH123
        pdb.Pdb(stdin=keyboard, stdout=screen, nosigint=True).set_trace()
        person.join()  # where the debugger stops
    os.close(write)


@act
def slow_disk(job: Job, seconds: float) -> None:
    """A save through a file object that takes its time, without using a processor."""

    class Slow:
        def __init__(self) -> None:
            self.file = (job.folder / f"slow-{job.rank}").open("wb")

        def write(self, data: bytes) -> int:
            time.sleep(seconds / 12)
            return self.file.write(data)

        def flush(self) -> None:
            self.file.flush()

    torch.save(job.model.state_dict(), Slow())


@act
def busy_listing(job: Job, seconds: float) -> None:
    """A listing of checkpoints on a file server: one slow answer after the other."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for path in job.folder.iterdir():
            path.exists()
            time.sleep(0.3)


@act
def announced_pause(_job: Job, seconds: float) -> None:
    """What the program says: only with State, a plain program does not know us."""
    import everstep

    with everstep.paused("the samples are looked at"):
        time.sleep(seconds)
