"""The launcher's care for processes, each story in an interpreter of its own: it adopts and waits for everything."""

import subprocess
import sys
import textwrap

import pytest

TIMEOUT_S = 60

PRELUDE = """
import asyncio, os, signal, socket, subprocess, sys
from pathlib import Path
from types import SimpleNamespace as Owner
from everstep.linux import proc
from everstep.engines.children import Children, wait_ended
from everstep.launcher import controller_keeper
from everstep.launcher.controller_keeper import ControllerKeeper

SOCKET = socket.create_server(("127.0.0.1", 0))

def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)
"""


@pytest.fixture
def story(tmp_path):
    def run(text: str) -> str:
        source = PRELUDE + textwrap.dedent(text) + "\nasyncio.run(main(sys.argv[1]))\n"
        done = subprocess.run(
            [sys.executable, "-c", source, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_what_a_dead_child_left_is_ended_and_nothing_else(story):
    out = story("""
    async def main(folder):
        before = subprocess.Popen(["sleep", "1000"])  # as a shell's background job before `exec everstep run`
        children = Children()
        children.start_reaping(asyncio.get_running_loop())
        text = "trap '' TERM; for i in 1 2 3; do setsid sh -c 'trap \\"\\" TERM; sleep 1000 & sleep 1000' & done; wait"
        ends, log = [], Path(folder, "log")
        child = children.spawn("agent", ["sh", "-c", text], on_end=lambda c, e: ends.append(str(e)), log=log)
        other = children.spawn("other", ["sleep", "1000"], on_end=lambda c, e: None)
        await until(lambda: len(proc.children(child.pid)) == 3)
        left = proc.children(child.pid)
        await until(lambda: all(proc.children(p) for p in left))
        child.send(signal.SIGKILL)
        assert await wait_ended([child], 10)
        assert ends == ["killed by SIGKILL"]
        assert await children.end_orphans()
        assert not any(alive(pid) for pid in left)
        assert alive(before.pid) and alive(other.pid)
        children.kill_all()
        assert await wait_ended([other], 10)
        before.kill()
        before.wait()
        print("done")
    """)
    assert out == "done\n"


def test_a_controller_that_cannot_begin_ends_the_launcher_with_its_error(story):
    out = story("""
    async def main(folder):
        children, codes = Children(), []
        children.start_reaping(asyncio.get_running_loop())
        keeper = ControllerKeeper(children=children, run_dir=Path(folder), listen_fds=(SOCKET.fileno(),),
            owner=Owner(controller_has_worked=False, on_hopeless=codes.append, say=print))
        keeper.start()
        await until(lambda: codes)
        print(codes)
    """)
    assert out == "[2]\n", "there is no spec.json"


def test_a_controller_that_dies_again_and_again_is_said_loudly_and_tried_for_ever(story):
    out = story("""
    async def main(folder):
        controller_keeper.MAX_DEATHS, controller_keeper.UNMANAGED_RETRY_S = 2, 0.05
        children, said = Children(), []
        children.start_reaping(asyncio.get_running_loop())
        keeper = ControllerKeeper(children=children, run_dir=Path(folder), listen_fds=(SOCKET.fileno(),),
            owner=Owner(controller_has_worked=True, on_hopeless=lambda code: print("hopeless"), say=said.append))
        keeper.start()
        await until(lambda: len(said) == 4)
        last = keeper.stop()
        if last:
            last.send(signal.SIGKILL)
            await wait_ended([last], 10)
        print(["UNMANAGED" in text for text in said])
    """)
    assert out == "[False, False, True, True]\n"
