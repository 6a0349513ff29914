"""The agent of a run on one host is killed: its ranks come back from twins that outlived it, and to the same bits."""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
from exact_training import TRAIN
from real_run import Launcher, Run, processes_of

from everstep.linux import proc
from everstep.linux.parent import HOLDER
from everstep.model.actions import IncidentClosed, StartWorkers
from everstep.model.events import NodeJoined, TemplateReported, WorkersStarted

TWO = ("--nproc-per-node", 2)
STEPS = 200
PLAIN = """
import time
import uncompiled, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1_000_000):
    model(torch.ones(2, 4)).sum().backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    optimizer.step(); optimizer.zero_grad()
    print("step", step, flush=True)
    time.sleep(0.02)
"""


def until_ready(run: Run, generation: int) -> str:
    """The node of this generation, when each of its ranks has a twin and has made steps."""
    start = run.until("a start", lambda: next((s for s in starts(run) if s.generation == generation), None))
    first = 0 if start.resume_step is None else start.resume_step + 1
    files = [run.run_dir / f"logs/gen-{generation}/rank-{rank}/stdout.log" for rank in (0, 1)]
    run.until("steps", lambda: all(f.exists() and f"step {first + 5}" in f.read_text() for f in files))
    run.until(
        "twins",
        lambda: [told.usable for told in run.events(TemplateReported) if told.node == start.node][-1:] == [True],
    )
    return start.node


def starts(run: Run) -> list[StartWorkers]:
    return run.actions(StartWorkers)


def how(run: Run, generation: int) -> list[str]:
    return [one.how for event in run.events(WorkersStarted) if event.generation == generation for one in event.started]


def names_of(pids: list[int]) -> list[str]:
    return [found.name for pid in pids if (found := proc.stat(pid)) is not None]


def test_ranks_of_killed_agents_come_back_from_twins_to_the_same_bits(launcher: Launcher):
    script = launcher.script(TRAIN)
    quiet = launcher.in_peace(script, STEPS, 0.0)
    run = launcher.start(*TWO, script, STEPS, 0.1)
    for generation in range(2):
        node = until_ready(run, generation)
        run.until("the end of the recovery before", lambda n=generation: len(run.actions(IncidentClosed)) == n)
        os.kill(run.agent_pid(node), signal.SIGKILL)
        assert run.until("a restart", lambda n=generation: how(run, n + 1)) == ["twin", "twin"], run.story()
    assert run.wait() == 0, run.story()
    closed = run.actions(IncidentClosed)
    assert [(c.outcome, c.lost_steps) for c in closed] == [("recovered", 0)] * 2, run.story()
    assert [event.node for event in run.events(NodeJoined)] == ["n0", "n1", "n2"]
    for rank in (0, 1):
        assert run.said(rank) == quiet[rank]


@pytest.mark.parametrize("whom", ["launcher", "holder", "top"])
def test_nothing_stays_of_twins_whose_agent_and_those_above_it_are_killed_at_once(launcher: Launcher, whom: str):
    run = launcher.start(*TWO, launcher.script(PLAIN))
    node = until_ready(run, 0)
    agent = run.agent_pid(node)
    holders = [pid for pid in processes_of(run.run_dir) if names_of([pid]) == [HOLDER]]
    stat = proc.stat(agent)
    assert stat is not None
    above = {"launcher": run.process.pid, "holder": stat.parent, "top": min(holders)}[whom]
    before = set(processes_of(run.run_dir))
    for pid in (above, agent):
        os.kill(pid, signal.SIGKILL)
    if whom == "launcher":
        run.process.wait()
        run.assert_nothing_left(2.0)
        return
    run.until("a cold restart", lambda: how(run, 1))
    assert how(run, 1) == ["fresh", "fresh"], run.story()
    gone = before - {run.process.pid, run.controller_pid()}
    run.until("the end of what was there", lambda: not (gone - stores(run)) & living(run))
    run.process.terminate()
    run.wait()


def stores(run: Run) -> set[int]:
    return {pid for pid in living(run) if b"stores" in command(pid)}


def living(run: Run) -> set[int]:
    return set(processes_of(run.run_dir))


def command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def test_a_lost_machine_takes_its_twins_with_it(launcher: Launcher):
    run = launcher.start(*TWO, launcher.script(PLAIN))
    node = until_ready(run, 0)
    assert run.drill("lose-node", node).passed
    run.until("a cold restart", lambda: how(run, 1))
    assert how(run, 1) == ["fresh", "fresh"], run.story()
    run.process.terminate()
    run.wait()


def test_a_signal_after_an_agents_death_ends_everything(launcher: Launcher):
    run = launcher.start(*TWO, launcher.script(PLAIN))
    node = until_ready(run, 0)
    os.kill(run.agent_pid(node), signal.SIGKILL)
    time.sleep(0.05)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(30) == 128 + signal.SIGTERM, run.story()
    run.assert_nothing_left(1.0)
