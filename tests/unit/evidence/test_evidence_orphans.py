"""What reads for another process ends with it, whatever ends that one."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

READER = """
import sys, time
from everstep.evidence.apart import start_child
print(start_child().pid, flush=True)
time.sleep(600)
"""
TRAFFIC = """
import asyncio, sys
from pathlib import Path
from everstep.web import traffic
sys.executable = sys.argv[1]
asyncio.run(traffic.Traffic().read(Path("/nowhere")))
"""
SLOW = """
import os, sys, time
from pathlib import Path
from everstep.cli.fabric import traffic
def wait(given):
    Path({told!r}).write_text(str(os.getpid()))
    time.sleep(600)
traffic._show = wait
from everstep.cli.main import main
main(sys.argv[sys.argv.index("fabric"):])
"""


def until(condition, limit_s: float = 90.0):
    ends = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < ends
        time.sleep(0.05)
    return found


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_a_reader_of_foreign_files_ends_with_who_asked_it(number) -> None:
    asking = subprocess.Popen([sys.executable, "-c", READER], stdout=subprocess.PIPE, text=True)
    try:
        reader = int(asking.stdout.readline())
        until(lambda: f"--parent\0{asking.pid}".encode() in Path(f"/proc/{reader}/cmdline").read_bytes())
        until(lambda: "pipe" in Path(f"/proc/{reader}/wchan").read_text())  # it waits for what to read
        os.kill(reader, signal.SIGSTOP)  # as one that is busy: it reads and writes nothing from now on
        asking.send_signal(number)
        until(lambda: is_gone(reader))
    finally:
        asking.kill()
        asking.wait()
        asking.stdout.close()


def test_the_traffic_of_a_page_ends_with_its_server(tmp_path) -> None:
    told, python = tmp_path / "told", tmp_path / "python"
    (tmp_path / "slow.py").write_text(SLOW.format(told=str(told)))
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(tmp_path))}/slow.py "$@"\n')
    python.chmod(0o700)
    asking = subprocess.Popen([sys.executable, "-c", TRAFFIC, str(python)])
    try:
        reader = int(until(lambda: told.exists() and told.read_text()))
        asking.kill()
        until(lambda: is_gone(reader))
    finally:
        asking.kill()
        asking.wait()


def test_one_whose_parent_is_gone_reads_nothing() -> None:
    command = [sys.executable, "-P", "-m", "everstep.evidence.child", "--parent", "1"]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, timeout=90).returncode == 1
