"""Waits for a socket of the rank's own, for an outside one, and with a time limit, on real processes."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from everstep.analyzer.observations.records import Hold, ThreadWait
from everstep.linux import unix_sockets
from everstep.probes.process import descendants
from everstep.probes.rank.own_sockets import OWN, with_own_sockets
from everstep.probes.rank.rank_wait import find_wait
from everstep.probes.rank.thread_waits import thread_waits

pytestmark = [
    pytest.mark.skipif(not os.access("/proc/self/syscall", os.R_OK), reason="the kernel does not tell"),
    pytest.mark.skipif(not unix_sockets.peers(), reason="the kernel does not list sockets"),
]

PAIR = "import socket; a, b = socket.socketpair(); "
LOOP = "import asyncio; "
PIPE = "import os, multiprocessing as m; a, b = m.Pipe(); pid = os.fork(); "


@pytest.fixture
def main_wait() -> Iterator[Callable[..., ThreadWait]]:
    """Starts a program and gives the wait of its main thread, as evidence has it, once it is this one."""
    started: list[subprocess.Popen[bytes]] = []

    def start(text: str, hold: Hold, env: dict[str, str] | None = None, **how: bool) -> ThreadWait:
        process = subprocess.Popen([sys.executable, "-c", text], env=env, **how)
        started.append(process)
        deadline = time.monotonic() + 60
        while True:
            pids = (process.pid, *descendants(process.pid))
            found = with_own_sockets(thread_waits(pids), pids)
            if found and found[0].hold is hold and (hold is not Hold.OUTSIDE or "socket" in found[0].what):
                return found[0]
            assert time.monotonic() < deadline, found
            time.sleep(0.05)

    yield start
    for process in started:
        for pid in (process.pid, *descendants(process.pid)):
            os.kill(pid, 9)
        process.wait()


@pytest.mark.parametrize(
    "text",
    [
        PAIR + "a.recv(1)",
        PAIR + "import select; select.select([a], [], [])",
        PAIR + "import select; p = select.poll(); p.register(a, 1); p.poll()",
        LOOP + "asyncio.run(asyncio.Event().wait())",
        PIPE + "a.recv()",
        "import multiprocessing as m; a, b = m.Pipe(); p = m.Process(target=b.recv); p.start(); b.close(); a.recv()",
    ],
    ids=["recv", "select", "poll", "asyncio", "both ends wait", "a process that waits as well"],
)
def test_nobody_outside_can_end_it(main_wait: Callable[..., ThreadWait], text: str) -> None:
    assert main_wait(text, Hold.OWN).what == OWN


@pytest.mark.parametrize(
    "text",
    [
        PAIR + "import select; select.select([a], [], [], 500)",
        PAIR + "import select; p = select.poll(); p.register(a, 1); p.poll(500_000)",
        LOOP + "asyncio.run(asyncio.sleep(500))",
        LOOP + "asyncio.run(asyncio.wait_for(asyncio.Event().wait(), 500))",
        "import socket as s; a = s.create_server(('127.0.0.1', 0)); s.create_connection(a.getsockname()).recv(1)",
        PAIR + "c = socket.create_server(('127.0.0.1', 0)); import select; select.select([a, c], [], [])",
        PAIR + "import os, select; e = os.eventfd(0); p = select.epoll(); [p.register(f, 1) for f in (a, e)]; p.poll()",
    ],
    ids=["select", "poll", "sleep", "wait_for", "tcp", "a server besides", "an event besides"],
)
def test_it_may_end(main_wait: Callable[..., ThreadWait], text: str) -> None:
    """By its time limit, or by what else it waits for."""
    main_wait(text, Hold.OUTSIDE)


def test_whose_other_end_is_elsewhere(main_wait: Callable[..., ThreadWait], tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        main_wait(f"import socket; a = socket.socket(1); a.connect({path!r}); a.recv(1)", Hold.OUTSIDE)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        number = theirs.fileno()
        os.set_inheritable(number, True)
        main_wait(f"import socket; socket.socket(fileno={number}).recv(1)", Hold.OUTSIDE, close_fds=False)


@pytest.mark.parametrize(
    "text",
    [
        "import multiprocessing as m; a, b = m.Pipe(duplex=False); a.poll(500)",
        "import os, select; r, w = os.pipe(); select.select([r], [], [], 500)",
        "import os, select; r, w = os.pipe(); p = select.epoll(); p.register(r, 1); p.poll(500)",
        "import multiprocessing as m; m.Queue().get(timeout=500)",
    ],
    ids=["poll", "select", "epoll", "queue"],
)
def test_a_pipe_that_is_waited_for_with_a_time_limit(main_wait: Callable[..., ThreadWait], text: str) -> None:
    """Whatever its own processes do or do not do, it goes on by itself."""
    wait = main_wait(text, Hold.TIMED)
    assert wait.left_s == pytest.approx(500, abs=1)
    found = find_wait(wait.pid, [], is_busy=False, in_loader=False)
    assert found is not None
    assert (found.what, found.left_s) == ("waits with a time limit", pytest.approx(500, abs=1))


def test_both_ends_of_a_connection_name_each_other() -> None:
    one, other = socket.socketpair()
    with one, other:
        inodes = [os.fstat(each.fileno()).st_ino for each in (one, other)]
        peers = unix_sockets.peers()
    assert [peers[inode] for inode in inodes] == inodes[::-1]
