"""What a process waits for, asked of the kernel, on real processes."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from everstep.analyzer.hangs.signals import WaitsOn
from everstep.probes.process import Usage, descendants, usage
from everstep.probes.rank import waiting as probe
from everstep.probes.rank.file_locks import holders_in, holders_of
from everstep.probes.rank.rank_wait import find_wait
from everstep.probes.rank.thread_waits import thread_waits, with_ranks
from everstep.probes.rank.waiting import Wait

pytestmark = pytest.mark.skipif(not os.access("/proc/self/syscall", os.R_OK), reason="the kernel does not tell")

SOCKETS = "import socket; a, b = socket.socketpair(); "
FORKED = "import os, time; r, w = os.pipe(); pid = os.fork()\nif not pid:\n    {child}\nos.close(w); os.read(r, 1)"


def uses(pid: int) -> dict[int, Usage | None]:
    return {each: usage(each) for each in (pid, *descendants(pid))}


def is_at_rest(before: dict[int, Usage | None], now: dict[int, Usage | None]) -> bool:
    """A child that is on its way to its own wait runs, or waits for a disk or a processor."""
    return before == now and all(use is not None and use.state not in "RD" for use in now.values())


@pytest.fixture
def waiting():
    """Starts a program and gives what it waits for, once it and its children do; `what` is what will be found then."""
    started = []

    def start(text: str, what: str | None = None, **how: bool) -> Wait | None:
        process = subprocess.Popen([sys.executable, "-c", f"print(flush=True); {text}"], stdout=subprocess.PIPE)
        started.append(process)
        process.stdout.readline()
        deadline = time.monotonic() + 60
        while True:
            before = uses(process.pid)
            time.sleep(0.05)
            found = find_wait(process.pid, descendants(process.pid), **{"is_busy": False, "in_loader": False, **how})
            now = uses(process.pid)
            is_found = what is None or (found is not None and found.what == what)
            if is_found and is_at_rest(before, now):
                return found
            assert time.monotonic() < deadline, (found, now)

    yield start
    for process in started:
        for pid in (process.pid, *descendants(process.pid)):
            os.kill(pid, 9)
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (SOCKETS + "a.recv(1)", "waits for a socket"),
        (SOCKETS + "a.settimeout(60); a.recv(1)", "waits for a socket"),
        (SOCKETS + "import select; select.select([a], [], [])", "waits for a socket"),
        (SOCKETS + "import select; p = select.epoll(); p.register(a, 1); p.poll()", "waits for a socket"),
        ("import threading; threading.Event().wait(60)", "waits with a time limit"),
        ("import subprocess; subprocess.run(['sleep', '60'])", "waits for its process, which sleeps"),
        (FORKED.format(child="time.sleep(60)"), "waits for its process, which sleeps"),
    ],
)
def test_outside(waiting, text, what):
    found = waiting(text, what)
    assert (found.on, found.what) == (WaitsOn.OUTSIDE, what)


def test_a_timer_says_when_it_ends(waiting):
    found = waiting("import time; time.sleep(60)", "sleeps")
    assert (found.on, found.what) == (WaitsOn.OUTSIDE, "sleeps")
    assert 40 < found.left_s <= 60


def test_a_file_lock_that_somebody_else_holds(waiting, tmp_path):
    path, me = tmp_path / "lock", f"{Path('/proc/self/comm').read_text().strip()} (pid {os.getpid()})"
    take = f"import fcntl; f = open({str(path)!r}, 'w'); fcntl.flock(f, 2); "
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found = waiting(take, f"waits for a lock on {path}, held by {me}")
        assert (found.on, found.what) == (WaitsOn.OUTSIDE, f"waits for a lock on {path}, held by {me}")
    assert waiting(take + "import time; time.sleep(60)", "sleeps").on is WaitsOn.OUTSIDE


def test_whose_lock_it_is_is_said_where_a_rank_holds_it(waiting, tmp_path):
    path, me = tmp_path / "lock", f"{Path('/proc/self/comm').read_text().strip()} (pid {os.getpid()})"
    take = f"import fcntl, os; f = open({str(path)!r}, 'w'); fcntl.flock(f, 2); "
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found = waiting(take, f"waits for a lock on {path}, held by {me}")
        assert found is not None
        assert found.holders == (os.getpid(),)
        pid = next(each for each in descendants(os.getpid()) if holders_of(each) == [os.getpid()])
        (wait,) = thread_waits([pid])
        assert wait.holders == (os.getpid(),)
        others = {3: [4711, os.getpid()], 5: [pid]}
        assert with_ranks([wait], others)[0].held_by == (3,)
        assert with_ranks([wait], {5: [pid]})[0].held_by == (), "a process of no rank"
        assert with_ranks([wait], {5: [pid, os.getpid()]})[0].held_by == (5,), "its own process"


def test_who_holds_a_lock_is_found_by_its_number():
    table = """\
1: POSIX  ADVISORY  WRITE 40 08:01:7 0 EOF
12: FLOCK  ADVISORY  WRITE 501 08:01:131 0 EOF
12: -> FLOCK  ADVISORY  WRITE 502 08:01:131 0 EOF
13: FLOCK  ADVISORY  READ  601 08:01:132 0 EOF
13: FLOCK  ADVISORY  READ  602 08:01:132 0 EOF
13: -> FLOCK  ADVISORY  WRITE 603 08:01:132 0 EOF
14: OFDLCK ADVISORY  WRITE -1 08:01:133 0 EOF
14: -> OFDLCK ADVISORY  WRITE 701 08:01:133 0 EOF
"""
    assert holders_in(table, 502) == [501]
    assert holders_in(table, 603) == [601, 602]
    assert holders_in(table, 701) == [], "a lock of an open file belongs to no process"
    assert holders_in(table, 501) == []


@pytest.mark.parametrize(
    "text",
    [
        "import threading; threading.Event().wait()",
        "import queue; queue.Queue().get()",
        FORKED.format(child="import threading; threading.Event().wait()"),
        FORKED.format(child="os.kill(os.getpid(), 19)"),
        "import os; os.kill(os.getpid(), 19)",
    ],
    ids=["a lock", "a queue", "a child that waits for a lock", "a stopped child", "stopped"],
)
def test_nothing_that_could_be_late(waiting, text):
    assert waiting(text) is None


def test_its_own_processes_at_work(waiting):
    """Their state at one moment says nothing while they use processor or disk."""
    found = waiting(FORKED.format(child="os.kill(os.getpid(), 19)"), is_busy=True)
    assert found.on is WaitsOn.OWN
    found = waiting("import threading; threading.Event().wait()", is_busy=True, in_loader=True)
    assert found.on is WaitsOn.OWN
    found = waiting("import threading; threading.Event().wait()", is_busy=True)
    assert found.on is WaitsOn.OWN, "another thread of its own works, and will release the lock"


def test_a_loader_that_reads_in_the_ranks_own_process(waiting):
    found = waiting(SOCKETS + "a.recv(1)", "waits for a socket", in_loader=True)
    assert (found.on, found.what) == (WaitsOn.OUTSIDE, "waits for a socket")
    assert waiting("import threading; threading.Event().wait(60)", in_loader=True) is None, (
        "for its processes, and none"
    )


def test_a_process_that_is_gone():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert find_wait(process.pid, [process.pid], is_busy=False, in_loader=True) is None


def test_no_file_is_touched_whose_server_may_not_answer(tmp_path, monkeypatch):
    def hangs(path: object, **_how: object) -> os.stat_result:
        raise AssertionError(f"stat({path}) would wait for ever")

    (tmp_path / "data").write_text("x")
    with (tmp_path / "data").open() as file, Path("/dev/null").open() as device, Path("/proc/self/stat").open() as own:
        memory, event = os.memfd_create("x"), os.eventfd(0)
        try:
            with monkeypatch.context() as patched:
                patched.setattr(os, "stat", hangs)
                found = probe._of_fd(os.getpid(), file.fileno())
                others = [
                    probe._of_fd(os.getpid(), fd) for fd in (device.fileno(), own.fileno(), memory, event, 1 << 20)
                ]
        finally:
            os.close(memory)
            os.close(event)
    assert found == Wait(what=f"waits for {tmp_path}/data")
    assert others == [None] * 5


def test_of_a_process_that_does_not_wait_nothing_more_is_read(monkeypatch):
    looked = []
    monkeypatch.setattr(probe, "_own_wait", looked.append)
    process = subprocess.Popen(["sleep", "60"])
    try:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert find_wait(process.pid, [], is_busy=False, in_loader=True) is None
    finally:
        process.kill()
        process.wait()
    assert looked == []
