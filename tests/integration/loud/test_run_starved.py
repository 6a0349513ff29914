"""Processes of a run that did not run for a while: stopped, suspended, starved. Nobody is killed for that alone."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from real_run import Launcher, Run

from everstep.engines import freezing
from everstep.model.actions import SettleDoubt, StartWorkers
from everstep.model.events import NodeInDoubt, NodeLost, NodeSilent, WorkerExited

TICK = """
i=0
while [ $i -lt 100000 ]; do echo "step $i $(date +%s.%N)"; i=$((i+1)); sleep 0.05; done
"""
QUICK_SILENT_S, QUICK_STOP_S = 5.0, 6.0  # nobody who is only late is silent for so long
SILENT_S = 3.5  # of the default policy
START_S = 180.0  # of processes that others starve; only failures wait so long


def start(launcher: Launcher, silent_s: float = SILENT_S, standby: int = 1) -> Run:
    config = launcher.folder / "everstep.toml"
    config.write_text(f"[policy]\nnode_silent_s = {silent_s}\nexamine = false\n")
    script = launcher.script(TICK, "tick.sh")
    run = launcher.start("--local-nodes", 2, "--standby", standby, "--config", config, "--no-python", "sh", script)
    run.until("steps", lambda: all(len(times(run, rank)) > 3 for rank in (0, 1)), START_S)
    run.until("all agents", lambda: len(list((run.run_dir / "nodes").glob("*/agent.log"))) == 2 + standby)
    return run


def times(run: Run, rank: int, generation: int = 0) -> list[float]:
    path = run.run_dir / f"logs/gen-{generation}/rank-{rank}/stdout.log"
    lines = path.read_text().splitlines() if path.exists() else []
    return [float(line.split()[2]) for line in lines if line.count(" ") == 2 and line[-1].isdigit()]


def until_on(run: Run, ranks: tuple[int, ...] = (0, 1), generation: int = 0, more: int = 10) -> None:
    """Each of them does so many steps from now on."""
    done = {rank: len(times(run, rank, generation)) for rank in ranks}
    run.until("more steps", lambda: all(len(times(run, r, generation)) >= done[r] + more for r in ranks))


def assert_nothing_happened(run: Run) -> None:
    assert not run.events(NodeLost)
    assert not run.events(NodeSilent)
    assert not run.events(WorkerExited)
    assert all(action.may_go_on for action in run.actions(SettleDoubt))
    assert {action.generation for action in run.actions(StartWorkers)} == {0}


def node_of(run: Run, rank: int) -> str:
    return next(action.node for action in run.actions(StartWorkers) if action.slot == rank)


def end(run: Run) -> None:
    run.process.terminate()
    run.wait()


def stand_still(pid: int, seconds: float) -> None:
    """Exactly this process, and no other."""
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)


def suspend(run: Run, seconds: float) -> None:
    """The launcher, the controller, all agents, their ranks: as when a laptop is closed."""
    freezing.freeze(run.process.pid)
    time.sleep(seconds)
    freezing.thaw(run.process.pid)


def test_a_machine_that_stands_still_as_a_whole_goes_on_with_the_same_ranks(launcher: Launcher):
    run = start(launcher, QUICK_SILENT_S, standby=0)
    suspend(run, QUICK_STOP_S)
    until_on(run)
    run.until("the answers", lambda: len(run.actions(SettleDoubt)) >= 2)
    assert_nothing_happened(run)
    end(run)


@pytest.mark.soak
@pytest.mark.parametrize("seconds", [2, 4, 8, 20])
def test_a_suspended_machine_loses_nothing_however_long_it_slept(launcher: Launcher, seconds: float):
    run = start(launcher)
    suspend(run, seconds)
    until_on(run, more=100)
    assert_nothing_happened(run)
    end(run)


@pytest.mark.soak
@pytest.mark.parametrize("seconds", [2, 4, 8])
def test_a_controller_alone_costs_nothing(launcher: Launcher, seconds: float):
    run = start(launcher)
    stand_still(run.controller_pid(), seconds)
    until_on(run, more=100)
    assert_nothing_happened(run)
    end(run)


@pytest.mark.soak
def test_an_agent_that_nobody_missed_goes_on(launcher: Launcher):
    run = start(launcher)
    stand_still(run.agent_pid(node_of(run, 1)), 2)
    until_on(run, more=100)
    assert_nothing_happened(run)
    end(run)


@pytest.mark.soak
def test_an_agent_between_its_own_lease_and_the_controllers_patience_is_in_doubt_and_goes_on(launcher: Launcher):
    """Longer than 0.85 of it, shorter than the whole: before, it ended ranks that the controller counted on."""
    run = start(launcher, 10.0)
    agent = run.agent_pid(node_of(run, 1))
    stand_still(agent, 9.2)
    run.until("the doubt", lambda: run.events(NodeInDoubt))
    until_on(run, more=100)
    assert_nothing_happened(run)
    assert [action.may_go_on for action in run.actions(SettleDoubt)] == [True]
    end(run)


@pytest.mark.soak
@pytest.mark.parametrize("seconds", [4, 8])
def test_an_agent_that_was_missed_is_replaced_and_its_ranks_never_run_beside_others(launcher: Launcher, seconds: float):
    """Its ranks went on without it; nobody can tell that from a node that is cut off."""
    run = start(launcher)
    agent = run.agent_pid(node_of(run, 1))
    os.kill(agent, signal.SIGSTOP)
    began = time.monotonic()
    run.until("another one", lambda: len(times(run, 1, 1)) > 3)
    assert max(times(run, 1, 0)) < min(times(run, 1, 1))
    assert not Path(f"/proc/{agent}").exists()
    time.sleep(max(0.0, seconds - (time.monotonic() - began)))
    until_on(run, generation=1)
    assert len(run.events(NodeLost)) == 1
    end(run)


@pytest.mark.soak
def test_starved_by_others_for_a_while_nobody_is_killed(launcher: Launcher):
    """A hundred busy processes on the processors that all of the run share, itself at the lowest priority."""
    run = start(launcher)
    for pid in (run.process.pid, *freezing.descendants(run.process.pid)):
        with contextlib.suppress(ProcessLookupError):  # a rank's `sleep`
            os.setpriority(os.PRIO_PROCESS, pid, 19)
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(100)]
    try:
        time.sleep(20)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    until_on(run, more=50)
    assert_nothing_happened(run)
    end(run)
