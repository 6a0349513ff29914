"""Which processes the agent ends and waits for, and which it leaves alone."""

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from everstep.agent.processes import reaping
from everstep.agent.processes.reaping import Reaper
from everstep.agent.ranks.workers import Group, Paths, Worker
from everstep.linux.children import Ended
from everstep.linux.parent import _PR_SET_CHILD_SUBREAPER, adopt_orphans
from everstep.model.facts import OomEvidence
from everstep.probes.node.command import output_of
from everstep.probes.oom import KernelLog


def until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextlib.contextmanager
def worker_of(process: subprocess.Popen[bytes]) -> Iterator[Worker]:
    nowhere = Path("/nonexistent")
    log = KernelLog()
    yield Worker(
        rank=0,
        local_rank=0,
        pid=process.pid,
        paths=Paths(stdout=nowhere, stderr=nowhere, error_file=nowhere),
        log=log,
    )
    log.close()


def test_a_tool_of_a_senses_thread_is_neither_a_leftover_nor_reaped_by_us(tmp_path):
    tool, go, answers = tmp_path / "tool", tmp_path / "go", []
    tool.write_text(f"#!/bin/sh\nwhile [ ! -e {go} ]; do sleep 0.01; done\nkill -9 $$\n")
    tool.chmod(0o755)
    thread = threading.Thread(target=lambda: answers.append(outcome([str(tool)])))
    thread.start()
    children = Path(f"/proc/self/task/{thread.native_id}/children")
    until(children.read_text)
    pid, reaper = int(children.read_text()), Reaper()
    assert pid not in reaper.adopted()
    go.touch()
    while thread.is_alive():
        reaper.reap()
    thread.join()
    assert answers == [f"{tool} was killed by signal 9"], "who reaps it knows how it ended"


def outcome(command: list[str]) -> str:
    try:
        return output_of(command, limit_s=60.0).decode()
    except Exception as error:
        return str(error)


def test_what_the_main_thread_starts_is_reaped_and_a_leftover_if_nobody_watches():
    process, ended, reaper = subprocess.Popen(["sleep", "60"]), [], Reaper()
    assert process.pid in reaper.adopted()
    reaper.watch(process.pid, ended.append)
    assert process.pid not in reaper.adopted()
    process.kill()
    until(lambda: reaper.reap() or ended)
    assert (ended[0].pid, ended[0].signal) == (process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("leaves_something", [False, True])
def test_the_number_of_a_session_that_is_gone_is_nobodys(monkeypatch, adopting, leaves_something):
    """Hours later it may be another program's; only while something of the session is left can it not."""
    text = "import subprocess; print(subprocess.Popen(['sleep', '60'], stdout=-3).pid)" if leaves_something else ""
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, start_new_session=True)
    with worker_of(process) as worker:
        left = process.communicate()[0]
        killed: list[int] = []
        monkeypatch.setattr(reaping, "kill_group", lambda pgid: killed.append(pgid) or is_there(pgid))
        group = Group(0, reaper=Reaper(), frames=None, on_exit=lambda _: None, twins=SimpleNamespace(is_forking=True))
        group.workers[0] = worker
        group.is_stopping, worker.stopped_at = True, time.time()
        group._on_end(worker, Ended(pid=process.pid, at=time.time(), code=0))
        assert killed == [process.pid], "at once, whatever is there"
        group.end_leftovers()
        assert killed == [process.pid] * (2 if leaves_something else 1)
        if leaves_something:
            os.kill(int(left), signal.SIGKILL)
            os.waitpid(int(left), 0)
        monkeypatch.setattr(reaping, "session_of", lambda _: process.pid)  # its number is taken again
        before = len(killed)
        group.end_leftovers()
        assert len(killed) == before


@pytest.mark.parametrize("who", ["somebody else", "the agent"])
def test_who_is_killed_while_it_is_stopped_was_stopped_by_us_only_if_we_killed_it(who):
    """Of two ranks that are killed at once the second one may be stopped for the first before its end is known."""
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    process = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE, start_new_session=True)
    process.stdout.readline()

    async def story(worker: Worker) -> None:
        reaper = Reaper()
        group = Group(0, reaper=reaper, frames=None, on_exit=lambda _: None, twins=SimpleNamespace(is_forking=True))
        group.workers[0] = worker
        reaper.watch(worker.pid, lambda ended: group._on_end(worker, ended))
        reaping_ = asyncio.create_task(reaped(reaper, worker))
        stopping = asyncio.create_task(group.stop(0.2 if who == "the agent" else 60.0))
        while worker.stopped_at is None:
            await asyncio.sleep(0)
        if who == "somebody else":
            process.kill()
        (exit_,) = await stopping
        await reaping_
        assert (exit_.signal, exit_.stopped_by_us) == (signal.SIGKILL, who == "the agent")

    async def reaped(reaper: Reaper, worker: Worker) -> None:
        while worker.is_alive:
            reaper.reap()
            await asyncio.sleep(0.01)

    with worker_of(process) as worker:
        asyncio.run(story(worker))
    process.stdout.close()
    process.wait()


@pytest.mark.parametrize("signal_name", ["Killed", "Segmentation fault"])
def test_a_worker_of_a_data_loader_that_was_killed_is_looked_for_among_the_kernels_victims(tmp_path, signal_name):
    """The rank itself raised, and nobody killed it. A worker that crashed was no victim of anybody."""
    said = f"RuntimeError: DataLoader worker (pid 4711) is killed by signal: {signal_name}. "
    report = {"everstep": {"kind": "RuntimeError", "message": said}, "message": {"extraInfo": {"py_callstack": said}}}
    (tmp_path / "error.json").write_text(json.dumps(report))
    found = OomEvidence(source="kernel log", line="Out of memory: Killed process 4711 (python)")
    asked: list[int | None] = []
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])
    process.wait()
    with worker_of(process) as worker:
        worker.paths = msgspec.structs.replace(worker.paths, error_file=tmp_path / "error.json")
        worker.oom.evidence = lambda child=None: asked.append(child) or found
        exit_ = worker._explained(Ended(pid=process.pid, at=time.time(), code=1))
    is_killed = signal_name == "Killed"
    assert (exit_.oom, asked) == ((found, [4711]) if is_killed else (None, []))


def is_there(pgid: int) -> bool:
    try:
        os.killpg(pgid, 0)
    except OSError:
        return False
    return True


@pytest.fixture
def adopting():
    """What our children leave behind comes to us, as it comes to the agent."""
    adopt_orphans()
    yield
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
