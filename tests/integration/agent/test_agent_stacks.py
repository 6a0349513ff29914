"""Stacks of a real process by each way, and what may not happen: a program that changed is never written to or hurt."""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lateness import Lateness

from everstep.agent.processes.reaping import Reaper
from everstep.agent.ranks.watch_link import WatchLink
from everstep.agent.ranks.workers import Paths, Worker
from everstep.agent.watching.stacks import Stacks
from everstep.probes.oom import KernelLog
from everstep.probes.rank.stack import find_py_spy

RANK = """
import ctypes, os, socket, sys, time
from everstep.worker.link import watch
class Board:
    def set_communication(self, seq, at): pass
    def forget_communication(self): pass
link = socket.socket(fileno=int(sys.argv[1]))
watch.start(Board(), link)
spill = next(int(n) for n in os.listdir("/proc/self/fd") if "everstep-spill" in os.readlink(f"/proc/self/fd/{n}"))
def hold():
    libc = ctypes.PyDLL(None)  # its calls keep the interpreter lock,
    sys.setswitchinterval(1000)  # and nobody is given it between two of them
    libc.write(1, b"ready\\n", 6)
    while True:
        libc.sleep(1000)
def close():
    file = os.open(sys.argv[3], os.O_RDWR | os.O_CREAT)
    os.dup2(file, spill)
    hold()
def become():
    os.dup2(spill, spill)
    os.set_inheritable(spill, True); os.set_inheritable(link.fileno(), True)
    os.execvp("sh", ["sh", "-c", "echo ready; while :; do sleep 1; done"])
def wait():
    print("ready", flush=True)
    while True:
        time.sleep(100)
def held():
    hold()
{"wait": wait, "held": held, "close": close, "become": become}[sys.argv[2]]()
"""
PATIENT_S = 5.0  # for an answer that comes
DENIED = '#!/bin/sh\necho x >> "$0.calls"\necho "Error: Permission Denied: Try running again" >&2\nexit 1\n'


@contextlib.asynccontextmanager
async def rank(tmp_path: Path, kind: str) -> AsyncIterator[tuple[Worker, Stacks]]:
    near, far = socket.socketpair()
    command = [sys.executable, "-c", RANK, str(far.fileno()), kind, str(tmp_path / "mine")]
    process = subprocess.Popen(command, stdout=-1, pass_fds=[far.fileno()])
    far.close()
    paths = Paths(stdout=tmp_path / "out", stderr=tmp_path / "err", error_file=tmp_path / "error")
    log = KernelLog()
    worker = Worker(rank=0, local_rank=0, pid=process.pid, paths=paths, log=log)
    worker.watch = WatchLink(near)
    reaper = Reaper()
    reaper.start()
    try:
        assert await asyncio.to_thread(process.stdout.readline) == b"ready\n"
        async with asyncio.timeout(60):
            while worker.watch.spill is None:
                await asyncio.sleep(0.01)
        yield worker, Stacks(reaper)
        assert process.poll() is None, "it lives on"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        worker.watch.close()
        log.close()


def names(look) -> list[str]:
    return [frame["name"] for frame in look.threads[-1]["frames"]] if look.threads else []


def of_rank(
    tmp_path: Path,
    kind: str,
    py_spy: str,
    monkeypatch: pytest.MonkeyPatch,
    limit_s: float = 10.0,
    sample_s: float = 0.6,
):
    monkeypatch.setenv("EVERSTEP_PY_SPY", py_spy)

    async def story():
        async with rank(tmp_path, kind) as (worker, stacks):
            return await stacks.of_rank(worker, limit_s, by_signal=True, sample_s=sample_s)

    return asyncio.run(story())


def test_the_sampler_answers_where_the_lock_is_free(tmp_path, monkeypatch):
    look = of_rank(tmp_path, "wait", "off", monkeypatch, sample_s=PATIENT_S)
    assert (look.source, names(look)[0]) == ("sampler", "wait")
    assert look.missing == ("py-spy is switched off (EVERSTEP_PY_SPY=off)",)


def test_frames_are_written_on_a_signal_where_it_is_held(tmp_path, monkeypatch):
    look = of_rank(tmp_path, "held", "off", monkeypatch)
    assert (look.source, names(look)[:2]) == ("signal", ["hold", "held"])
    assert "did not answer" in look.missing[1]
    assert look.threads[-1]["owns_gil"]


def test_a_file_that_took_the_place_of_ours_is_not_written_to(tmp_path, monkeypatch):
    look = of_rank(tmp_path, "close", "off", monkeypatch)
    assert look.threads == []
    assert "the program has changed" in look.missing[-1]
    assert (tmp_path / "mine").read_bytes() == b""


def test_a_program_that_became_another_is_not_signalled(tmp_path, monkeypatch):
    look = of_rank(tmp_path, "become", "off", monkeypatch)
    assert look.threads == []
    assert "the program has changed" in look.missing[-1] or "gone" in look.missing[-1]


def test_a_refusal_is_not_asked_for_again_and_again(tmp_path, monkeypatch):
    stub = tmp_path / "py-spy"
    stub.write_text(DENIED)
    stub.chmod(0o755)
    monkeypatch.setenv("EVERSTEP_PY_SPY", str(stub))

    async def story() -> list[tuple[str, ...]]:
        async with rank(tmp_path, "wait") as (worker, stacks):
            return [(await stacks.of_rank(worker, 10.0, sample_s=PATIENT_S)).missing for _ in range(3)]

    for missing in asyncio.run(story()):
        assert "Permission Denied" in missing[0]
    assert Path(f"{stub}.calls").read_text() == "x\n"


def test_a_py_spy_that_never_ends_is_ended_and_costs_its_limit(tmp_path, monkeypatch):
    stub = tmp_path / "py-spy"
    stub.write_text('#!/bin/sh\necho $$ > "$0.pid"\nexec sleep 100\n')
    stub.chmod(0o755)
    began = time.monotonic()
    with Lateness() as late:
        look = of_rank(tmp_path, "wait", str(stub), monkeypatch, limit_s=6.0, sample_s=3.0)
    assert time.monotonic() - began < 20 + late.seconds
    assert (look.source, look.missing) == ("sampler", ("py-spy gave nothing within 3 s",))
    pid = int(Path(f"{stub}.pid").read_text())
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # its agent is this test, whose loop is over
        assert time.monotonic() < deadline
        time.sleep(0.01)


LENDING = """#!/bin/sh
echo x >> "$0.calls"
owns=$([ "$(wc -l < "$0.calls")" -gt 2 ] && echo true || echo false)
frame='{"name": "loop", "filename": "train.py", "short_filename": "train.py", "line": 7}'
is='"thread_id": 1, "thread_name": "MainThread", "active": true, "owns_gil": '$owns
echo '[{"pid": '$5', '$is', "frames": ['$frame']}]'
"""


def test_a_rank_that_lends_the_lock_for_a_moment_is_looked_at_again(tmp_path, monkeypatch):
    stub = tmp_path / "py-spy"
    stub.write_text(LENDING)
    stub.chmod(0o755)
    look = of_rank(tmp_path, "wait", str(stub), monkeypatch)
    assert (look.source, look.threads[0]["owns_gil"]) == ("py-spy", True)
    assert Path(f"{stub}.calls").read_text() == "x\n" * 3


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
@pytest.mark.skipif(find_py_spy() is None, reason="py-spy is not installed")
def test_the_real_py_spy_without_the_right_to_trace(tmp_path, monkeypatch):
    wrapper = tmp_path / "py-spy"
    caps = "--bounding-set=-sys_ptrace --inh-caps=-sys_ptrace"
    wrapper.write_text(f'#!/bin/sh\nexec setpriv {caps} "{find_py_spy()}" "$@"\n')
    wrapper.chmod(0o755)
    look = of_rank(tmp_path, "wait", str(wrapper), monkeypatch, sample_s=PATIENT_S)
    assert (look.source, names(look)[0]) == ("sampler", "wait")
    assert "ermission" in look.missing[0]
