"""The senses on real things: filesystems that fill and turn read-only, interfaces in a namespace of their own, a look
that hangs. What needs root makes its own mounts and namespaces, and nothing outside them.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from everstep.agent.senses.rounds import Rounds
from everstep.agent.senses.sensing import Sensing
from everstep.model.facts import Alert
from everstep.probes.node.bounded import Bounded
from everstep.probes.node.filesystems import Filesystems
from everstep.probes.node.memory import Memory
from everstep.probes.oom import memory_cgroup
from everstep.probes.sense import UnsupportedError, alert

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
DEADLINE_S = 60.0


def in_namespace(kind: str, script: str, *arguments: str) -> list:
    """Run Python in namespaces of its own; what it prints as JSON, line by line."""
    if shutil.which("unshare") is None:
        pytest.skip("no unshare")
    command = ["unshare", f"-{kind}", sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "Operation not permitted" in done.stderr or "unshare:" in done.stderr:
        pytest.skip(f"namespaces are not allowed here: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


# -- filesystems -----------------------------------------------------------------------------------------------------

MOUNTS = """
import json, os, subprocess, sys, time
from pathlib import Path
from everstep.probes.node.filesystems import Filesystems
from everstep.probes.node.memory import Memory
folder = sys.argv[1]
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=200", "tmpfs", folder], check=True)
sense = Filesystems((Path(folder) / "run",))
def look():
    found = [a for a in sense.look(time.time()) if a.device == folder]
    print(json.dumps([[a.code, a.severity, a.sentence] for a in found]), flush=True)
look()
try:
    with open(folder + "/checkpoint", "wb") as file:
        file.write(b"x" * (2 << 20))
except OSError:
    pass
look()
os.unlink(folder + "/checkpoint")
look()
for n in range(198):
    open(f"{folder}/{n}", "w").close()
look()
for n in range(198):
    os.unlink(f"{folder}/{n}")
subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
look()
subprocess.run(["mount", "-o", "remount,rw", folder], check=True)
look()
"""


@needs_root
@pytest.mark.root
def test_a_filesystem_that_fills_and_turns_read_only(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    fine, full, empty, many, read_only, again = in_namespace("m", MOUNTS, str(folder))
    assert (fine, empty, again) == ([], [], [])
    assert full == [["ES-M24", "warning", f"filesystem {folder} is full: 0 MiB left"]]
    assert [one[0] for one in many] == ["ES-M24"]
    assert "inodes left" in many[0][2]
    assert [one[:2] for one in read_only] == [["ES-M25", "error"]]


def test_a_filesystem_that_hangs_is_told_and_costs_one_thread(tmp_path):
    table = tmp_path / "mounts"
    table.write_text("server:/ckpt /ckpt nfs4 rw 0 0\n")
    answers = threading.Event()

    def ask(path: str):
        answers.wait(DEADLINE_S)
        raise OSError("gone")

    sense = Filesystems((Path("/ckpt/run"),), mounts=table, ask=ask, hung_after_s=0.05)
    before = threading.active_count()
    try:
        for _ in range(3):
            (found,) = sense.look(0.0)
            assert (found.code, found.severity, found.blame) == ("ES-M26", "error", "storage")
        assert threading.active_count() == before + 1
    finally:
        answers.set()
    wait_for(lambda: threading.active_count() == before)
    assert sense.look(1.0) == [], "it answers again, if only with an error"


def test_bounded_gives_results_and_errors():
    bounded: Bounded[int] = Bounded()
    assert bounded.call("a", lambda: 3, 5.0) == 3
    with pytest.raises(ZeroDivisionError):
        bounded.call("a", lambda: 1 // 0, 5.0)


# -- network ---------------------------------------------------------------------------------------------------------

NETWORK = """
import json, subprocess, sys, time
from pathlib import Path
from everstep.probes.node.debounce import Debounce
from everstep.probes.node.interfaces import Interfaces
def do(command):
    subprocess.run(command.split(), check=True)
do("mount --make-rprivate /")
do("mount -t sysfs sysfs /sys")
do("ip link add eth7 type veth peer name peer7")
do("ip link set eth7 up")
do("ip link set peer7 up")
sense, debounce, at = Interfaces(Path("/sys")), Debounce(), 1000.0
def state():
    return Path("/sys/class/net/eth7/operstate").read_text().strip()
def until(wanted):
    deadline = time.monotonic() + 10
    while state() != wanted:
        assert time.monotonic() < deadline, state()
        time.sleep(0.01)
def look():
    global at
    at += 5
    found = [a for a in sense.look(at) if a.device == "eth7"]
    print(json.dumps([[a.code, a.severity] for a in debounce.take(at, found)]), flush=True)
until("up")
look()
do("ip link set peer7 down")
until("lowerlayerdown")
look()
look()
do("ip link set peer7 up")
until("up")
look()
for _ in range(2):
    do("ip link set peer7 down")
    until("lowerlayerdown")
    do("ip link set peer7 up")
    until("up")
look()
do("ip link del eth7")
look()
"""


@needs_root
@pytest.mark.root
def test_an_interface_that_goes_down_in_a_namespace(tmp_path):
    if shutil.which("ip") is None:
        pytest.skip("no ip")
    up, first, second, back, flapped, gone = in_namespace("nm", NETWORK)
    assert up == []
    assert first == [["ES-M13", "warning"]], "one look is a warning"
    assert second == [["ES-M13", "error"]], "it stays down"
    assert back == [], "that it was down has been told"
    assert flapped == [["ES-M14", "error"]], "down and up again, twice, between two looks"
    assert gone == [], "folded: it is down again, told a moment ago"


# -- what a sense of ours does wrong ---------------------------------------------------------------------------------


class Scripted:
    every_s = 0.05

    def __init__(self, name: str, look) -> None:
        self.name = name
        self._look = look
        self.num_looks = 0
        self.is_closed = False

    def look(self, now: float) -> list[Alert]:
        self.num_looks += 1
        return self._look(now)

    def close(self) -> None:
        self.is_closed = True


def wait_for(accept) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not accept():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_sense_that_raises_hangs_or_cannot_tell_leaves_the_others_alone():
    answers = threading.Event()
    said: dict[str, list[str]] = {}
    heard: list[Alert] = []

    def unsupported(now: float):
        raise UnsupportedError("no such device")

    senses = {
        "good": Scripted("good", lambda now: [alert("ES-M30", "low", at=now, source="good")]),
        "bad": Scripted("bad", lambda now: 1 / 0),
        "none": Scripted("none", unsupported),
        "hung": Scripted("hung", lambda now: answers.wait(DEADLINE_S) and []),
    }
    rounds = Rounds(
        list(senses.values()),
        hear=heard.extend,
        say=lambda name, why: said.setdefault(name, []).append(why),
        look_limit_s=0.2,
        first_after_s=0.0,
    )
    rounds.start()
    try:
        wait_for(lambda: senses["hung"].num_looks == 1)
        looked = senses["good"].num_looks
        wait_for(lambda: rounds.replace_if_hung() or "hung" in said)
        wait_for(lambda: senses["good"].num_looks >= looked + 3)
        assert said["hung"] == ["hangs: no answer for 0.2 s"]
        assert [one.device for one in heard if one.code == "ES-M37"] == ["hung"]
        assert senses["hung"].num_looks == 1, "it is not asked again while it hangs"
        assert said["bad"] == ["failed: ZeroDivisionError: division by zero"]
        assert said["none"] == ["unsupported: no such device"]
        answers.set()
        wait_for(lambda: senses["hung"].num_looks >= 2)
        assert said["hung"][1] == ""
        assert heard
    finally:
        answers.set()
        rounds.close()
    wait_for(lambda: all(sense.is_closed for sense in senses.values()))
    wait_for(lambda: not any(t.name.startswith("everstep-senses") for t in threading.enumerate()))


def test_sensing_outlives_a_report_that_fails(tmp_path):
    reports: list = []

    def report(event) -> None:
        reports.append(event)
        raise RuntimeError("the link is broken")

    sense = Scripted("good", lambda now: [alert("ES-M30", "low", at=now, source="good", device=str(time.time_ns()))])

    async def story() -> None:
        sensing = Sensing("n0", report, senses=[sense], state_file=tmp_path / "none" / "senses.json", first_after_s=0.0)
        task = asyncio.create_task(sensing.run())
        try:
            deadline = time.monotonic() + DEADLINE_S
            while len(reports) < 3:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
            assert not task.done()
            assert sensing.states["good"] == ""
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(story())
    wait_for(lambda: sense.is_closed)


# -- clock -----------------------------------------------------------------------------------------------------------


def test_the_kernels_word_on_the_clock_is_the_one_of_adjtimex():
    """Against the layout of the C library's own structure, by its size and the field that we read."""
    from everstep.probes.node.clocks import _Timex, clock_is_held

    assert _Timex.status.offset == 5 * ctypes.sizeof(ctypes.c_long)
    assert clock_is_held() in (True, False)


# -- memory ------------------------------------------------------------------------------------------------------------

EATER = "import sys\nsys.stdin.readline()\neaten = []\nwhile True:\n    eaten.append(bytearray(b'x') * (4 << 20))\n"
WAITER = "import sys\nsys.stdin.readline()\n"


def cgroup_for_us() -> Path | None:
    """A control group of ours with a limit; None where that is not allowed."""
    here = memory_cgroup(os.getpid())
    if here is None:
        return None
    folder = (here.path if here.version == 1 else here.path.parent) / f"everstep-senses-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / ("memory.limit_in_bytes" if here.version == 1 else "memory.max")).write_text(str(64 << 20))
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()
        return None
    return folder


@needs_root
@pytest.mark.root
def test_a_control_group_in_which_the_killer_strikes():
    folder = cgroup_for_us()
    if folder is None:
        pytest.skip("memory cgroups are not writable here")
    waiter, eater = (subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE) for text in (WAITER, EATER))
    try:
        for process in (waiter, eater):
            (folder / "cgroup.procs").write_text(str(process.pid))
        sense = Memory(pid=waiter.pid)
        assert sense.look(0.0) == []
        eater.communicate(b"\n", timeout=60)
        (found,) = sense.look(10.0)
        assert (found.code, found.severity, found.count) == ("ES-M32", "warning", 1)
        assert str(folder) in found.sentence
        assert sense.look(20.0) == []
    finally:
        for process in (waiter, eater):
            process.kill()
            process.communicate()
        folder.rmdir()
