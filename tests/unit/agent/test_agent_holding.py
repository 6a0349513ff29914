"""Processes above an agent: what they keep of a killed one, what they end, and that none of them stays.

Real processes, without torch: an agent that only parks a child, in a line that a test plays the launcher of.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from everstep.engines.children import Child, Children
from everstep.engines.holders import Agents
from everstep.linux.children import Ended

AGENT = """
import json, os, signal, subprocess, sys, time
from everstep.agent.processes.holding import stand_in_line
from everstep.linux import proc
from everstep.linux.parent import adopt_orphans, die_with_parent
argv, line = stand_in_line(sys.argv[1:])
die_with_parent(line.parent, signal.SIGTERM)
adopt_orphans()
os.close(line.done_fd) if line.done_fd >= 0 else None  # there is no warden
parked, fds = line.parked
twin = parked["twins"][0]["pid"] if parked["twins"] else subprocess.Popen(["sleep", "600"]).pid
two = "(setsid sleep 600 & echo $!); exec sleep 600"
stray = subprocess.Popen(["sh", "-c", two], stdout=subprocess.PIPE, text=True)
line.mailbox.post({"twins": [{"pid": twin}]}, [])
told = {"pid": os.getpid(), "twin": twin, "stray": [stray.pid, int(stray.stdout.readline())], "argv": argv}
told["is_mine"] = twin in proc.children(os.getpid())
with open(argv[argv.index("--run-dir") + 1] + "/" + argv[argv.index("--node") + 1], "w") as file:
    file.write(json.dumps(told) + "\\n")
while True:
    time.sleep(60)
"""


class Launcher:
    def __init__(self, folder: Path, num_holders: int) -> None:
        self._folder = folder
        self.children = Children()
        self.children.start_reaping(asyncio.get_running_loop())
        self.agents = Agents(self.children, num_holders)
        self.ended: dict[str, Ended] = {}

    async def start(self, node: str) -> tuple[Child, dict]:
        argv = [sys.executable, "-c", AGENT, "--run-dir", str(self._folder), "--node", node]
        keeper, theirs = os.pipe()
        try:
            agent = self.agents.start(node, argv, theirs, on_end=self._on_end, log=self._folder / "log")
        finally:
            os.close(theirs)
            os.close(keeper)
        path = self._folder / node
        await until(lambda: path.exists() and path.read_text().endswith("\n"))
        told = json.loads(path.read_text())
        await until(lambda: agent.pid == told["pid"])
        return agent, told

    def _on_end(self, agent: Child, ended: Ended) -> None:
        self.ended[agent.name] = ended

    async def kill(self, agent: Child) -> None:
        agent.send(signal.SIGKILL)
        await until(lambda: agent.name in self.ended)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def is_there(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def play(folder: Path, story: Callable[[Launcher], Awaitable[None]], num_holders: int = 2) -> None:
    async def run() -> None:
        launcher = Launcher(folder, num_holders)
        try:
            await story(launcher)
        finally:
            await launcher.agents.end()
            launcher.children.kill_all()
            assert await launcher.children.end_orphans()

    asyncio.run(run())


def test_a_twin_outlives_as_many_agents_as_there_are_holders_and_nothing_else_does(tmp_path):
    async def story(launcher: Launcher) -> None:
        agent, first = await launcher.start("n0")
        told = first
        for node in ("n1", "n2"):
            await launcher.kill(agent)
            assert launcher.ended[agent.name].signal == signal.SIGKILL
            assert not any(map(is_there, told["stray"])), "it had ended before its loss was told"
            await launcher.agents.keep(agent)
            agent, told = await launcher.start(node)
            assert (told["twin"], told["is_mine"]) == (first["twin"], True)
        await launcher.kill(agent)
        await launcher.agents.keep(agent)
        await launcher.children.end_orphans()
        assert not is_there(first["twin"]), "no holder was left to keep it"
        agent, told = await launcher.start("n3")
        assert told["twin"] != first["twin"]
        await launcher.kill(agent)

    play(tmp_path, story)


def test_what_was_meant_for_a_holder_that_was_killed_is_not_done_by_the_one_above(tmp_path):
    async def story(launcher: Launcher) -> None:
        agent, first = await launcher.start("n0")
        await launcher.kill(agent)
        await launcher.agents.keep(agent)
        holder = parent_of(first["twin"])
        os.kill(holder, signal.SIGSTOP)  # it does not hear what it is to be
        argv = [sys.executable, "-c", AGENT, "--run-dir", str(tmp_path), "--node", "n1"]
        with Path(os.devnull).open() as keeper:
            agent = launcher.agents.start("n1", argv, keeper.fileno(), on_end=launcher._on_end, log=tmp_path / "log")
        os.kill(holder, signal.SIGKILL)
        await until(lambda: "n1" in launcher.ended)
        await launcher.agents.keep(agent)
        await launcher.start("n2")
        assert not (tmp_path / "n1").exists()
        assert not is_there(first["twin"])

    play(tmp_path, story)


def test_a_twin_of_a_node_that_is_to_be_gone_ends_with_it(tmp_path):
    async def story(launcher: Launcher) -> None:
        agent, told = await launcher.start("n0")
        launcher.agents.renounce(agent)
        await launcher.kill(agent)
        await launcher.agents.keep(agent)
        await launcher.children.end_orphans()
        assert not is_there(told["twin"])

    play(tmp_path, story)


@pytest.mark.parametrize("which", [0, 1])
def test_a_killed_holder_ends_the_node(tmp_path, which):
    async def story(launcher: Launcher) -> None:
        agent, told = await launcher.start("n0")
        chain = [agent.pid]
        while (parent := parent_of(chain[-1])) != os.getpid():
            chain.append(parent)
        os.kill(chain[-1 - which], signal.SIGKILL)
        await until(lambda: "n0" in launcher.ended)
        await launcher.agents.keep(agent)
        await launcher.children.end_orphans()
        assert not any(map(is_there, [*chain, told["twin"], *told["stray"]]))

    play(tmp_path, story)


LAUNCHER = """
import asyncio, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_agent_holding import Launcher
async def run():
    agent, told = await Launcher(Path(sys.argv[1]), 2).start("n0")
    print(agent.pid, told["twin"], *told["stray"], flush=True)
    await asyncio.sleep(600)
asyncio.run(run())
"""


def test_a_killed_launcher_ends_the_line(tmp_path):
    """The agent ends itself then, and its twins by their sockets: here the agent's end is looked at."""
    argv = [sys.executable, "-c", LAUNCHER, tmp_path, Path(__file__).parent]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        agent, *below = map(int, launcher.stdout.readline().split())
        chain = [agent]
        while (parent := parent_of(chain[-1])) != launcher.pid:
            chain.append(parent)
        launcher.kill()
        deadline = time.monotonic() + 10
        while any(map(is_there, chain)) and time.monotonic() < deadline:
            time.sleep(0.01)
        for pid in below:  # a played agent has no warden, and a played twin no socket
            os.kill(pid, signal.SIGKILL)
        assert not any(map(is_there, chain))
