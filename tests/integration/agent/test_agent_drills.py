"""Faults on request, and telling an out-of-memory kill from a plain SIGKILL. The kernel's killer is the real one."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_controller import bench, is_alive, kill

from everstep.model import events
from everstep.model.actions import Inject
from everstep.model.spec import Launch
from everstep.probes.oom import KernelLog, OomWatch, memory_cgroup, parse_record

FRESH = {"EVERSTEP_TWINS": "off"}
LISTENS = "from everstep.worker.link.runtime import current; current(); "  # as torch does when it is imported
BUSY = LISTENS + "import time\nn = 0\nwhile True:\n    time.sleep(0.01); n += 1; n - 2 or print('ready', flush=True)\n"
"""Says it in the line in which it stays: what comes at once finds it nowhere else."""


def cgroup_reason() -> str:
    cgroup = memory_cgroup(os.getpid())
    if cgroup is None:
        return "no memory cgroup is mounted"
    parent = cgroup.path if cgroup.version == 1 else cgroup.path.parent
    probe = parent / f"everstep-probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        return f"memory cgroups are not writable here: {error}"
    return ""


needs_cgroup = pytest.mark.skipif(bool(cgroup_reason()), reason=cgroup_reason())


def write(tmp_path, text):
    (tmp_path / "train.py").write_text(text)
    return "train.py"


def drill(tmp_path, kind: str, text: str = BUSY, rank: int | None = 0, expect=events.WorkerExited):
    program = write(tmp_path, text)

    async def story():
        async with bench(tmp_path, program, nproc=1, env=FRESH) as made:
            await made.start_workers(0)
            await made.controller.wait(events.WorkersStarted)
            deadline = time.monotonic() + 20
            while "ready" not in made.log(0, 0):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
            await made.controller.send(Inject(why="test", drill="d1", kind=kind, node="n0", rank=rank, generation=0))
            return await made.controller.wait(expect)

    return asyncio.run(story())


def test_kill_rank(tmp_path):
    ended = drill(tmp_path, "kill-rank").exit
    assert (ended.signal, ended.stopped_by_us, ended.oom, ended.error) == (signal.SIGKILL, False, None, None)


def test_exit(tmp_path):
    ended = drill(tmp_path, "exit").exit
    assert (ended.code, ended.error) == (42, None)


def test_raise(tmp_path):
    ended = drill(tmp_path, "raise").exit
    assert ended.code == 1
    assert (ended.error.kind, ended.error.place) == ("DrillError", "train.py:4")
    assert "raised in rank 0 by a drill" in ended.error.traceback


@needs_cgroup
def test_oom(tmp_path):
    cgroup = memory_cgroup(os.getpid())
    before = set(cgroup.path.glob("everstep-drill-*"))  # of a test that was killed, perhaps
    ended = drill(tmp_path, "oom").exit
    assert (ended.signal, ended.stopped_by_us) == (signal.SIGKILL, False)
    assert ended.oom is not None
    assert not set(cgroup.path.glob("everstep-drill-*")) - before, "the drill's cgroup is taken away again"


def test_a_drill_without_a_target_is_refused(tmp_path):
    failed = drill(tmp_path, "exit", rank=5, expect=events.DrillFailed)
    assert (failed.drill, failed.why) == ("d1", "the rank has no live process on this node")


def test_kill_agent_leaves_nothing(tmp_path):
    program = write(tmp_path, BUSY)

    async def story() -> None:
        async with bench(tmp_path, program, nproc=1, env=FRESH) as made:
            await made.start_workers(0)
            await made.controller.wait(events.WorkersStarted)
            await made.controller.send(Inject(why="test", drill="d1", kind="kill-agent", node="n0", generation=0))
            assert await asyncio.to_thread(made.agent.wait, 10) == -signal.SIGKILL

    asyncio.run(story())  # leaving `bench` looks for what is left


EATER = """
import sys
sys.stdin.readline()
eaten = []
while True:
    eaten.append(bytearray(b"x") * (8 << 20))
"""


@needs_cgroup
def test_a_real_out_of_memory_kill_is_told_from_a_signal():
    """Two processes in one limited cgroup: one is the kernel's victim, the other gets a plain SIGKILL after it."""
    here = memory_cgroup(os.getpid())
    parent = here.path if here.version == 1 else here.path.parent
    folder = parent / f"everstep-test-{os.getpid()}"
    folder.mkdir()
    log = KernelLog()
    processes = [subprocess.Popen([sys.executable, "-c", EATER], stdin=subprocess.PIPE) for _ in range(2)]
    try:
        name = "memory.limit_in_bytes" if here.version == 1 else "memory.max"
        (folder / name).write_text(str(128 << 20))
        for process in processes:
            (folder / "cgroup.procs").write_text(str(process.pid))
        watches = [OomWatch(process.pid, log) for process in processes]
        victim, bystander = processes
        victim.stdin.write(b"\n")
        victim.stdin.flush()
        assert victim.wait(60) == -signal.SIGKILL
        kill(bystander.pid)
        bystander.wait(60)
        evidence = watches[0].evidence()
        assert evidence is not None
        if log.is_readable:
            assert evidence.source == "kernel log"
            assert f"Killed process {victim.pid} " in evidence.line
            assert watches[1].evidence() is None
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdin.close()
        log.close()
        folder.rmdir()


@needs_cgroup
def test_without_the_kernel_log_the_cgroup_counter_speaks():
    here = memory_cgroup(os.getpid())
    parent = here.path if here.version == 1 else here.path.parent
    folder = parent / f"everstep-counter-{os.getpid()}"
    folder.mkdir()
    process = subprocess.Popen([sys.executable, "-c", EATER], stdin=subprocess.PIPE)
    try:
        (folder / ("memory.limit_in_bytes" if here.version == 1 else "memory.max")).write_text(str(96 << 20))
        watch = OomWatch(process.pid, KernelLog(path="/nonexistent"))
        (folder / "cgroup.procs").write_text(str(process.pid))
        watch.refresh()  # it was moved after the watch began
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.wait(30)
        evidence = watch.evidence()
        assert evidence is not None
        assert evidence.source.endswith("oom_kill 0 -> 1")
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        folder.rmdir()


def test_kernel_log_records_are_parsed():
    record = b"3,1234,5678901,-;Memory cgroup out of memory: Killed process 77 (python) total-vm:1kB\n SUBSYSTEM=x\n"
    assert parse_record(record) == "Memory cgroup out of memory: Killed process 77 (python) total-vm:1kB"
    for garbage in (b"", b";", b"no separator", b"\xff\xfe;x", b"x,1;text"):
        assert parse_record(garbage) == ""


def test_records_of_a_log_are_matched_by_pid(tmp_path):
    fifo = tmp_path / "kmsg"  # like /dev/kmsg: one read, one record, and EAGAIN when there is none
    os.mkfifo(fifo)
    log = KernelLog.__new__(KernelLog)
    log._lines, log._fd = [], os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    with Path(fifo).open("wb", buffering=0) as writer:
        assert log.victim_line(7) == ""
        writer.write(b"3,1,1,-;Out of memory: Killed process 77 (python), UID 0\n")
        assert log.victim_line(7) == ""
        assert log.victim_line(77).startswith("Out of memory")
    log.close()


def test_a_program_without_our_runtime_is_not_hit_by_the_drills_signal(tmp_path):
    async def story() -> None:
        async with bench(tmp_path, "sleep", args=("600",), launch=Launch.COMMAND, nproc=1, env=FRESH) as made:
            await made.start_workers(0)
            started = await made.controller.wait(events.WorkersStarted)
            await made.controller.wait(events.MarksReported)
            cmdline = Path(f"/proc/{started.started[0].pid}/cmdline")
            async with asyncio.timeout(60):
                while b"sleep\0" not in cmdline.read_bytes()[:6]:
                    await asyncio.sleep(0.01)
            await made.controller.send(Inject(why="test", drill="d1", kind="raise", node="n0", rank=0, generation=0))
            failed = await made.controller.wait(events.DrillFailed)
            assert "no runtime of ours" in failed.why
            assert is_alive(started.started[0].pid)

    asyncio.run(story())
