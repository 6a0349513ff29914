"""The probes of a live rank, on real files and real processes; what they cannot tell is None."""

import os
import signal
import subprocess
import sys
import time

import pytest

from everstep.analyzer.observations.clusters import Activity
from everstep.probes.process import MIN_INTERVAL_S, DeviceProbe, cpu_left_s, descendants, is_traced, usage
from everstep.probes.rank.communication import STALE_S, CommunicationProbe
from everstep.probes.rank.log_age import LogProbe
from everstep.probes.rank.stack import MIN_ROW, StackProbe, parse


def test_log_age(tmp_path):
    path = tmp_path / "stdout.log"
    probe = LogProbe((path, tmp_path / "stderr.log"))
    assert probe.look(100.0) is None
    path.touch()
    assert probe.look(100.0) is None, "an empty log was never written to"
    path.write_text("x\n")
    os.utime(path, (90, 90))
    assert (probe.look(100.0), probe.gap_s) == (10.0, None)
    os.utime(path, (97, 97))
    assert (probe.look(100.0), probe.gap_s) == (3.0, 7.0)
    os.utime(path, (98, 98))
    assert (probe.look(97.0), probe.gap_s) == (0.0, 7.0), "a clock that differs is no negative age"


@pytest.fixture
def child():
    started = []

    def start(text: str) -> int:
        process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout.readline() == b"ready\n"
        return process.pid

    yield start
    for process in started:
        for pid in (*descendants(process.pid), process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def look_until(probe: DeviceProbe, accept, limit_s: float = 60.0) -> float | None:
    deadline = time.monotonic() + limit_s
    while not accept(age := probe.look(time.time())):
        assert time.monotonic() < deadline, f"{age} after {limit_s} s"
        time.sleep(0.25)
    return age


def test_a_sleeping_process_is_silent_and_a_stopped_one_is_seen_as_stopped(child):
    pid = child("import time; print('ready', flush=True); time.sleep(60)")
    probe = DeviceProbe(pid)
    look_until(probe, lambda age: age > 0.6 and probe.state == "S")
    os.kill(pid, signal.SIGSTOP)
    look_until(probe, lambda _: probe.state == "T")


def test_a_child_that_works_is_a_sign_of_life(child):
    text = (
        "import os\npid = os.fork()\nif pid == 0:\n    while True: pass\n"
        "else:\n    print('ready', flush=True); os.waitpid(pid, 0)"
    )
    pid = child(text)
    assert len(descendants(pid)) == 1
    probe = DeviceProbe(pid)
    began = time.time()
    probe.look(began)
    look_until(probe, lambda age: age == 0.0 and time.time() - began > MIN_INTERVAL_S)


def test_what_is_left_of_a_limit_of_cpu_time():
    limited = subprocess.Popen(["sh", "-c", "ulimit -S -t 100; exec sleep 60"])
    free = subprocess.Popen(["sleep", "60"])
    try:
        deadline = time.monotonic() + 60
        while (left_s := cpu_left_s(limited.pid)) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert left_s is not None
        assert 90 < left_s <= 100
        assert cpu_left_s(free.pid) is None
    finally:
        for process in (limited, free):
            process.kill()
            process.wait()
    assert cpu_left_s(limited.pid) is None


def test_a_process_that_is_gone_is_unknown():
    process = subprocess.Popen(["true"])
    process.wait()
    assert DeviceProbe(process.pid).look(time.time()) is None
    assert usage(process.pid) is None
    assert not is_traced(process.pid)
    assert descendants(process.pid) == []


def test_communication_is_unknown_when_nobody_looked():
    cells = {"now": (None, None)}
    probe = CommunicationProbe(lambda: cells["now"])
    assert probe.look(10.0) is None
    cells["now"] = (7.0, 9.5)
    assert probe.look(10.0) == 3.0
    assert probe.look(9.6 + STALE_S) is None, "the thread that looks is stopped: that nothing moved was not seen"


def stack(name: str, file: str = "train.py", line: int = 1, **thread: bool) -> list[object]:
    listed = [(name, f"/home/u/{file}", line), ("main", "/home/u/train.py", 9)]
    frames = [{"name": name, "filename": file, "line": line} for name, file, line in listed]
    return [{"pid": 1, "thread_name": "MainThread", "active": True, "owns_gil": True, "frames": frames, **thread}]


def test_a_stack_that_stays_ages_from_the_first_of_its_row():
    probe = StackProbe()
    assert probe.look(1.0) is None
    for number in range(MIN_ROW):
        assert probe.look(2.0 + number) is None, "too few to tell"
        probe.take(stack("spin", line=number), "", 2.0 + number)
    assert probe.look(7.0) == 5.0
    probe.take(stack("forward"), "", 8.0)
    assert probe.look(8.0) is None, "another place is a sign of life"
    for number in range(MIN_ROW):
        probe.take(stack("spin"), "", 9.0 + number)
    assert probe.look(13.0) == 4.0
    probe.forget()
    assert probe.look(14.0) is None


def test_what_computes_without_the_lock_never_stands_and_what_waits_does():
    probe = StackProbe()
    for number in range(9):
        probe.take(stack("linear", owns_gil=False), "", float(number))
    assert probe.look(9.0) is None
    for _ in range(MIN_ROW):
        probe.take(stack("all_reduce", "lib/python3.11/site-packages/torch/distributed/d.py", owns_gil=False), "", 10.0)
    assert probe.look(13.0) == 3.0


def test_who_spins_until_its_device_is_done_waits():
    """CUDA takes a whole processor to wait, also for a collective of NCCL."""
    probe = StackProbe()
    for number in range(MIN_ROW):
        place = "lib/python3.11/site-packages/torch/cuda/__init__.py"
        probe.take(stack("synchronize", place, owns_gil=False), "", 10.0 + number)
    assert (probe.look(15.0), probe.activity) == (5.0, Activity.DEVICE)


def test_a_debugger_is_recognised():
    probe = StackProbe()
    probe.take(stack("interaction", "lib/pdb.py"), "", 1.0)
    assert probe.in_debugger


def test_what_py_spy_cannot_do_is_said():
    assert parse(b"", b"Error: Permission Denied\n\nReason:\n  x\n") == ([], "Error: Permission Denied Reason: x")
    assert parse(b"[]", b"")[1] == "py-spy lists no thread"
    probe = StackProbe()
    probe.take([], "not permitted", 1.0)
    assert (probe.look(2.0), probe.why_not) == (None, "not permitted")
    probe.take(["garbage"], "", 1.0)
    assert probe.look(2.0) is None
