"""Ranks that SIGKILL does not end are written off: the job goes on, Ctrl-C ends the run and says what is left."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from fake_controller import bench
from freezer import freezer, needs_freezer
from lateness import Lateness
from real_run import launching

from everstep.linux import proc
from everstep.model import events
from everstep.model.events import WorkersStarted, WorkersStopped
from everstep.probes.unkillable import STUCK_S, Stillness, describe

TRAIN = """
import sys, time
import uncompiled, torch, torch.distributed as dist, everstep
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.Linear(8, 8)
for parameter in model.parameters():
    dist.broadcast(parameter.data, 0)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
state = everstep.State(model=model, optimizer=optimizer)
for step in state.steps(int(sys.argv[1])):
    model(torch.full((2, 8), step / 10)).square().sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step(); optimizer.zero_grad()
    print("step", step, flush=True)
    time.sleep(0.03)
print("weights", sum(p.double().sum() for p in model.parameters()).item().hex(), flush=True)
dist.destroy_process_group()
"""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def moves(pid: int) -> tuple[int, ...]:
    """How often it was given a processor."""
    return tuple(n for tid in proc.threads(pid) for n in proc.switches(pid, tid))


def wait_for_state(pid: int, state: str) -> None:
    """Until it is there for good: a page of its program that comes from a disk is an uninterruptible sleep, too."""
    deadline = time.monotonic() + 60
    while not ((found := proc.stat(pid)) and found.state == state):
        assert time.monotonic() < deadline, f"process {pid} is not in state {state}: {found}"
        time.sleep(0.01)


def stuck_after(stillness: Stillness, clock: Clock, seconds: float) -> bool:
    stillness.look()
    clock.now += seconds
    return stillness.look()


@needs_freezer
def test_only_what_cannot_take_a_signal_and_does_not_move_is_stuck() -> None:
    process, clock = subprocess.Popen(["sleep", "1000"]), Clock()
    try:
        while Path(f"/proc/{process.pid}/comm").read_text() != "sleep\n":
            time.sleep(0.01)
        wait_for_state(process.pid, "S")
        stillness = Stillness(process.pid, clock)
        assert not stuck_after(stillness, clock, 100.0), "it sleeps, and any signal wakes it up"
        process.send_signal(signal.SIGSTOP)
        wait_for_state(process.pid, "T")
        assert not stuck_after(stillness, clock, 100.0), "it is stopped, and SIGKILL ends it"
        process.send_signal(signal.SIGCONT)
        wait_for_state(process.pid, "S")
        with freezer() as cold:
            cold.freeze(process.pid)
            wait_for_state(process.pid, "D")
            assert not stuck_after(stillness, clock, STUCK_S / 2), "not long enough"
            assert stuck_after(stillness, clock, STUCK_S)
            said = describe(process.pid)
            assert said.startswith(f"process {process.pid} (sleep), in uninterruptible sleep")
            assert f"frozen by cgroup /{cold.path.name}" in said
            cold.thaw()
            wait_for_state(process.pid, "S")
            assert not stillness.look(), "it has moved"
        process.kill()
        process.wait()
        assert not stuck_after(stillness, clock, 100.0), "it is gone"
    finally:
        process.kill()
        process.wait()


def test_a_process_that_is_slow_to_end_is_not_stuck() -> None:
    """It reads from a disk, and sleeps uninterruptibly most of the time: but it moves."""
    text = "import os, time\nwhile True: os.sync(); time.sleep(0.001)"
    process, clock = subprocess.Popen([sys.executable, "-c", text]), Clock()
    try:
        time.sleep(0.5)
        stillness = Stillness(process.pid, clock)
        for _ in range(5):
            stillness.look()
            before, deadline = moves(process.pid), time.monotonic() + 60
            while moves(process.pid) == before:  # the disk is everybody's
                assert time.monotonic() < deadline
                time.sleep(0.01)
            clock.now += 100.0
            assert not stillness.look()
    finally:
        process.kill()
        process.wait()


LOOP = """
import os, time
print("step", flush=True)
time.sleep(1000)
"""


@needs_freezer
@pytest.mark.parametrize("num_stuck", [1, 2])
def test_the_agent_writes_off_and_the_next_generation_runs(tmp_path: Path, num_stuck: int) -> None:
    (tmp_path / "train.py").write_text(LOOP)

    async def story() -> None:
        async with bench(tmp_path, "train.py", env={"EVERSTEP_TWINS": "off"}) as made:
            await made.start_workers(0)
            started = await made.controller.wait(events.WorkersStarted)
            stuck = [each.pid for each in started.started[:num_stuck]]
            while not all(made.log(0, rank) for rank in range(2)):
                await asyncio.sleep(0.01)
            with freezer() as cold:
                cold.freeze(*stuck)
                with Lateness() as late:
                    began = time.monotonic()
                    stopped = await made.stop_workers(0, grace_s=0.5)
                    assert time.monotonic() - began < STUCK_S + 5 + late.seconds
                left = {each.rank: each.left_behind for each in stopped.exits}
                for rank, pid in enumerate(stuck):
                    assert left[rank].startswith(f"process {pid} (")
                assert not any(left[rank] for rank in range(num_stuck, 2))
                assert all((e.code, e.signal) == (None, None) for e in stopped.exits if e.left_behind)
                await made.start_workers(1)
                await made.controller.wait(events.WorkersStarted, lambda e: e.generation == 1)
                while not all(made.log(1, rank) for rank in range(2)):
                    await asyncio.sleep(0.01)
                cold.thaw()
                while any(Path(f"/proc/{pid}").exists() for pid in stuck):
                    await asyncio.sleep(0.01)
            again = await made.stop_workers(1)
            assert [each.left_behind for each in again.exits] == ["", ""]
            assert {each.signal for each in again.exits} == {signal.SIGTERM}

    asyncio.run(story())


def weights_after(num_steps: int) -> str:
    """Of one process that nothing happens to. Both ranks have the same gradients: their sum is exactly twice each."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(num_steps):
        model(torch.full((2, 8), step / 10)).square().sum().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(2)
        optimizer.step()
        optimizer.zero_grad()
    return float(sum(p.detach().double().sum().item() for p in model.parameters())).hex()


@needs_freezer
def test_a_job_goes_on_without_it_and_computes_the_same(tmp_path: Path) -> None:
    with launching(tmp_path) as launcher:
        run = launcher.start("--nproc-per-node", 2, launcher.script(TRAIN), 60)
        run.until_step(10)
        pid = run.rank_pid(1)
        with freezer() as cold:
            cold.freeze(pid)
            os.kill(run.rank_pid(0), signal.SIGKILL)  # when a hang is acted on is another matter
            run.until_step(30, generation=1)
            cold.thaw()  # it would go on now, if it were not for the SIGKILL that it has got
            assert run.wait() == 0, run.story()
        assert run.said(0)["weights"] == weights_after(60)
        (left,) = [e.left_behind for event in run.events(WorkersStopped) for e in event.exits if e.left_behind]
        assert f"process {pid} " in left
        assert f"rank 1 is left behind: SIGKILL does not end process {pid} " in run.err()


@needs_freezer
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_the_launcher_and_says_what_it_leaves(tmp_path: Path, times: int) -> None:
    with launching(tmp_path) as launcher:
        run = launcher.start("--shutdown-timeout", 5, *launcher.loop())
        run.until_step(10)
        pid = run.rank_pid(1)
        with freezer() as cold:
            cold.freeze(pid)
            for _ in range(times):
                run.process.send_signal(signal.SIGINT)
                time.sleep(0.3)
            assert run.wait(25.0) == 128 + signal.SIGINT
            assert f"left behind: SIGKILL does not end process {pid} " in run.err()
            assert pids_in(run.survivors()) <= cold.held(), run.survivors()


AGENT = """
import os, subprocess, sys, time
from pathlib import Path
from everstep.agent.ranks.warden import Warden
from everstep.agent.streams.spool import Spool
warden = Warden("no such ward")
writing = Spool(warden).open(Path(sys.argv[1]))
rank = subprocess.Popen(["sh", "-c", "echo step; exec sleep 1000"], stdout=writing, start_new_session=True)
os.close(writing)
warden.tell_session(rank.pid)
print(rank.pid, warden.pid, flush=True)
sys.stdin.readline()
warden.dismiss()
sys.stdin.readline()  # it takes its time to end
"""


@needs_freezer
def test_the_warden_of_an_agent_that_is_slow_to_end_waits_for_no_dead_rank(tmp_path: Path) -> None:
    """Its agent has what ranks write open, for reading, until it has ended."""
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, tmp_path / "stdout.log"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert agent.stdin is not None
    assert agent.stdout is not None
    try:
        rank, warden = map(int, agent.stdout.readline().split())
        while (tmp_path / "stdout.log").read_text() != "step\n":
            time.sleep(0.01)
        with freezer() as cold, Lateness() as late:
            cold.freeze(rank)
            began = time.monotonic()
            agent.stdin.write("\n")
            agent.stdin.flush()
            while not is_over(warden):
                assert time.monotonic() - began < 5.0 + late.seconds, proc.stat(warden)
                time.sleep(0.02)
            assert agent.poll() is None
            assert not is_over(rank)
    finally:
        agent.kill()
        agent.communicate()


def pids_in(described: list[str]) -> set[int]:
    return {int(line.split()[0]) for line in described}


def is_over(pid: int) -> bool:
    found = proc.stat(pid)
    return found is None or found.state in "ZX"


@pytest.mark.parametrize("whom", ["controller", "agent", "twin"])
@pytest.mark.parametrize("how", ["stopped", pytest.param("frozen", marks=needs_freezer)])
def test_ctrl_c_ends_the_launcher_whatever_of_ours_is_stuck(tmp_path: Path, whom: str, how: str) -> None:
    with launching(tmp_path) as launcher:
        program = ("--nproc-per-node", 2, launcher.script(TRAIN), 100_000) if whom == "twin" else launcher.loop()
        run = launcher.start("--shutdown-timeout", 5, *program)
        run.until_step(10)
        pid = {"controller": run.controller_pid, "agent": run.agent_pid, "twin": lambda: twin_of(run)}[whom]()
        with freezer() as cold:
            if how == "frozen":
                cold.freeze(pid)
            else:
                os.kill(pid, signal.SIGSTOP)
            run.process.send_signal(signal.SIGINT)
            run.wait(40.0)
            assert pids_in(run.survivors()) <= ({pid} if how == "stopped" else cold.held()), run.survivors()
            if how == "frozen":
                assert f"left behind: SIGKILL does not end process {pid} " in run.err()
            else:
                run.assert_nothing_left()


def twin_of(run) -> int:
    """A child of the agent that runs the program and is no rank."""
    agent = run.agent_pid()
    ranks = {each.pid for event in run.events(WorkersStarted) for each in event.started}
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    found = [pid for pid in map(int, children) if "-u" in Path(f"/proc/{pid}/cmdline").read_text().split("\0")]
    assert set(found) - ranks, children
    return min(set(found) - ranks)
