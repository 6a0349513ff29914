"""eBPF in the running kernel: who took the CPU is named, who did not is not, and nothing stays after SIGKILL."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from everstep.analyzer.slowness.off_cpu import KernelView
from everstep.linux import proc
from everstep.preflight.checks.reading.ebpf import measure
from everstep.preflight.result import Result
from everstep.preflight.settings import Settings

PARENT = """
import asyncio, json, sys, msgspec
from everstep.agent.processes.reaping import Reaper
from everstep.agent.watching import kernel_views
from everstep.agent.watching.kernel_views import KernelViews

kernel_views.ANSWER_LIMIT_S = 60.0  # whatever else runs here

async def main():
    reaper = Reaper()
    reaper.start()
    views = KernelViews(reaper, {"EVERSTEP_EBPF": "on"})
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        view = await views.look(json.loads(line))
        print(json.dumps([views._pid, msgspec.to_builtins(view)]), flush=True)

asyncio.run(main())
"""
BURN = "while True: pass"
LIMIT_S = 60.0


def missing() -> str:
    found = [each for each in measure(Settings()) if isinstance(each, Result)]
    return next((each.why for each in found if each.why), "")


def until(what: str, holds: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.2)


def test_who_takes_a_cpu_is_named_and_nothing_stays_attached() -> None:
    if why := missing():
        pytest.skip(why)
    core = sorted(os.sched_getaffinity(0))[-1]
    pinned = [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{core}}})\n{BURN}"]
    rank, parent = subprocess.Popen(pinned), None
    burner: subprocess.Popen[bytes] | None = None
    try:
        parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        observer = 0

        def takers() -> set[int]:
            """Whoever had the CPU of the rank meanwhile; on a loaded machine also others than the burner."""
            nonlocal observer
            parent.stdin.write(json.dumps([rank.pid]).encode() + b"\n")
            parent.stdin.flush()
            observer, seen = json.loads(parent.stdout.readline())
            view = msgspec.convert(seen, KernelView)
            return {taker.pid for thread in view.threads for taker in thread.takers if thread.pid == rank.pid}

        takers()
        burner = subprocess.Popen(pinned)
        until("the burner is named", lambda: burner.pid in takers())
        burner.kill()
        burner.wait()
        # Once more it may be named: the rank may have waited since then, for whoever came after it.
        until("the burner is forgotten", lambda: burner.pid not in takers())
        links = attached(observer)
        assert len(links) == 7, "one for each program"
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        until("detached", lambda: not any(map(exists, links)))
        until("the observer has ended", lambda: (found := proc.stat(observer)) is None or found.state in "ZX")
    finally:
        for process in (rank, burner, parent):
            if process is not None:
                process.kill()
                process.communicate()


TICK = "import time\nwhile True: time.sleep(0.0005)"


def test_who_had_a_cpu_for_long_is_named_not_who_took_it_first() -> None:
    """Short ones interrupt the rank again and again, and the burner is what it then waits for."""
    if why := missing():
        pytest.skip(why)
    core = sorted(os.sched_getaffinity(0))[-1]
    pinned = f"import os; os.sched_setaffinity(0, {{{core}}})\n"
    codes = [BURN, BURN, TICK, TICK, TICK]
    started = [subprocess.Popen([sys.executable, "-c", pinned + code]) for code in codes]
    rank, burner, *tickers = (process.pid for process in started)
    observer = subprocess.Popen(
        [sys.executable, "-m", "everstep.probes.ebpf.observer", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    started.append(observer)

    def takers() -> dict[int, float]:
        observer.stdin.write(json.dumps({"pids": [rank]}).encode() + b"\n")
        observer.stdin.flush()
        view = msgspec.convert(json.loads(observer.stdout.readline())["view"], KernelView)
        return {taker.pid: taker.wait_s for thread in view.threads for taker in thread.takers}

    def used(pid: int) -> int:
        return found[0] if (found := proc.sched_ns(pid)) else 0

    try:
        time.sleep(1.0)
        takers()
        begun, waited = {pid: used(pid) for pid in (burner, *tickers)}, dict.fromkeys((burner, *tickers), 0.0)

        def is_enough() -> bool:
            for pid, wait_s in takers().items():
                waited[pid] = waited.get(pid, 0.0) + wait_s
            return waited[burner] > 1.0

        until("the rank waits for the burner", is_enough)
        ran = {pid: used(pid) - ns for pid, ns in begun.items()}
        others_ran = sum(ran[pid] for pid in tickers) / ran[burner]
        others_blamed = sum(waited[pid] for pid in tickers) / waited[burner]
        assert others_blamed < 3 * others_ran + 0.1
    finally:
        for process in started:
            process.kill()
            process.communicate()


HOLD = """
import fcntl, os, sys, time
os.sched_setaffinity(0, {int(sys.argv[2])})
file = open(sys.argv[1], "w")
while True:
    fcntl.flock(file, fcntl.LOCK_EX)
    time.sleep(float(sys.argv[3]))
    fcntl.flock(file, fcntl.LOCK_UN)
    time.sleep(0.002)
"""


def test_who_holds_a_lock_is_named_where_the_cpu_of_who_waits_is_idle(tmp_path: Path) -> None:
    """The kernel then wakes who waits by an interrupt to his CPU, and there nothing says who sent it."""
    if why := missing():
        pytest.skip(why)
    one, *_, other = sorted(os.sched_getaffinity(0))
    places = [(one, "0.03"), (other, "0.001")]
    command = [sys.executable, "-c", HOLD, str(tmp_path / "lock")]
    holder, rank = started = [subprocess.Popen([*command, str(core), held_s]) for core, held_s in places]
    observer = subprocess.Popen(
        [sys.executable, "-m", "everstep.probes.ebpf.observer", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    started.append(observer)
    slept: dict[int, float] = {}

    def is_enough() -> bool:
        observer.stdin.write(json.dumps({"pids": [rank.pid]}).encode() + b"\n")
        observer.stdin.flush()
        view = msgspec.convert(json.loads(observer.stdout.readline())["view"], KernelView)
        for sleep in [sleep for thread in view.threads for sleep in thread.sleeps if sleep.kind == "file lock"]:
            slept[sleep.waker] = slept.get(sleep.waker, 0.0) + sleep.total_s
        return sum(slept.values()) > 1.0

    try:
        until("the rank waits for the lock", is_enough)
        assert slept.get(holder.pid, 0.0) > 0.8 * sum(slept.values())
    finally:
        for process in started:
            process.kill()
            process.communicate()


def attached(pid: int) -> list[int]:
    """Ids of the kernel's links that a process holds."""
    texts = [each.read_text() for each in Path(f"/proc/{pid}/fdinfo").iterdir()]
    return [int(text.split("link_id:")[1].split()[0]) for text in texts if "link_id:" in text]


def exists(link: int) -> bool:
    fd = ctypes.CDLL("libbpf.so.1").bpf_link_get_fd_by_id(link)
    if fd >= 0:
        os.close(fd)
    return fd >= 0
